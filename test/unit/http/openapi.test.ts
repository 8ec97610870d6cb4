import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { operationIdOf } from '../../../server/http/openapi.ts';

const document = JSON.parse(readFileSync(new URL('../../snapshots/openapi.json', import.meta.url), 'utf8')) as {
  paths: Record<string, Record<string, { operationId: string }>>;
};

it('names an operation by its verb and its resource', () => {
  expect(operationIdOf('get', '/api/jobs')).toBe('listJobs');
  expect(operationIdOf('get', '/api/jobs/{job_id}')).toBe('getJob');
  expect(operationIdOf('post', '/api/jobs')).toBe('createJob');
  expect(operationIdOf('post', '/api/targets/{target_id}/jobs/{job_id}/resume')).toBe('resumeTargetJob');
  expect(operationIdOf('post', '/api/webhooks/deliveries/{id}/resend')).toBe('resendWebhooksDelivery');
  expect(operationIdOf('get', '/api/jobs/{job_id}/why')).toBe('getJobWhy');
});

it('gives every operation a unique id', () => {
  const ids = Object.values(document.paths).flatMap((methods) =>
    Object.values(methods).map((each) => each.operationId),
  );
  expect(ids).not.toContain(undefined);
  expect(new Set(ids).size).toBe(ids.length);
  for (const id of ids) expect(id).toMatch(/^[a-z][A-Za-z0-9]+$/);
});
