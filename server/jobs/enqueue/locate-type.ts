// Who could run jobs of a type: this process, another daemon, or remote workers if the tenant allows it.

import type { LiveDaemon } from '../../daemons/live-daemons.ts';
import { problem } from '../../kernel/errors.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { JobTypes } from './job-types.ts';

export type TypeLocation = 'local' | 'otherDaemon' | 'remote';

/** Refuses a type that nobody could run, and names those that somebody can. */
export async function locateType(
  type: string,
  known: {
    tenant: Pick<Tenant, 'settings'>;
    jobTypes: Pick<JobTypes, 'has' | 'types'>;
    liveDaemons(): Promise<LiveDaemon[]>;
  },
): Promise<TypeLocation> {
  if (known.jobTypes.has(type)) return 'local';
  if (allowsRemote(known.tenant, type)) return 'remote';
  // Daemons may differ in what they run: this one may only serve the API.
  const elsewhere = (await known.liveDaemons()).flatMap((daemon) => daemon.jobTypes);
  if (elsewhere.includes(type)) return 'otherDaemon';
  const types = [...new Set([...known.jobTypes.types(), ...elsewhere])].sort();
  const list = types.length === 0 ? 'No types are known.' : `Known types: ${types.join(', ')}.`;
  throw problem('UNKNOWN_JOB_TYPE', `No handler or worker knows the job type ${JSON.stringify(type)}. ${list}`, {
    field: 'type',
    known_types: types,
  });
}

function allowsRemote(tenant: Pick<Tenant, 'settings'>, type: string): boolean {
  const allowed = tenant.settings.remote_job_types ?? [];
  return allowed.includes('*') || allowed.includes(type);
}
