// The daemon's HTTP server. It listens before the API is loaded, which happens with the first request.
import type { Express } from 'express';
import type { Access } from '../http/request/host-access.ts';
import { HttpServer } from '../http/server.ts';
import type { ApiParts } from './create-api.ts';
import type { DaemonContext } from './daemon-context.ts';

export type CreateApi = (access: Access) => Promise<Express>;

export function createHttp(context: DaemonContext, parts: ApiParts): { http: HttpServer; createApi: CreateApi } {
  const { config, logger } = context;
  const createApi = async (access: Access) => (await import('./create-api.ts')).createApi(context, parts, access);
  const onRequest = () => parts.workers.monitor.wake();
  const address = { host: config.host, port: config.port };
  const http = new HttpServer(() => createApi({}), { ...address, onRequest }, logger);
  return { http, createApi };
}
