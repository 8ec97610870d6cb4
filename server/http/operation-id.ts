// The `operationId` of a route, from its method and path: `listJobs`, `getJob`, `resumeTargetJob`. Generated clients name
// their methods by it, so a path keeps its id as long as it exists.

const collections = new Set([
  'jobs',
  'targets',
  'keys',
  'tenants',
  'workers',
  'events',
  'deliveries',
  'operations',
  'schedules',
  'lanes',
  'queues',
  'zombies',
  'logs',
  'settings',
  'questions',
  'links',
]);

/** Where the last segment is neither a collection nor a verb. */
const exceptions: Record<string, string> = {
  'post /api/scheduler/jobs/{job_id}/status': 'reportSchedulerJobStatus',
  'post /api/scheduler/lease/{lease_id}/heartbeat': 'renewSchedulerLease',
  'post /api/events/{name}': 'sendEvent',
  'post /api/session': 'signIn',
  'delete /api/session': 'signOut',
  'get /openapi.json': 'getOpenApi',
};

export function operationIdOf(method: string, path: string): string {
  const exception = exceptions[`${method} ${path}`];
  if (exception !== undefined) return exception;
  const segments = path.split('/').filter((segment) => segment !== '' && segment !== 'api');
  const isParameter = (n: number) => segments[n]?.startsWith('{') ?? false;
  const names = segments.flatMap((segment, n) =>
    isParameter(n) ? [] : [isParameter(n + 1) ? singular(segment) : segment],
  );
  const last = names.at(-1) ?? '';
  const endsInParameter = isParameter(segments.length - 1);
  switch (method) {
    case 'get':
      return camel(!endsInParameter && collections.has(last) ? 'list' : 'get', ...names);
    case 'put':
      return camel('replace', ...names);
    case 'patch':
      return camel('update', ...names);
    case 'delete':
      return camel('delete', ...names);
    default:
      return collections.has(last)
        ? camel('create', ...names.slice(0, -1), singular(last))
        : camel(last, ...names.slice(0, -1));
  }
}

function singular(name: string): string {
  return name.endsWith('ies') ? `${name.slice(0, -3)}y` : name.replace(/s$/, '');
}

function camel(verb: string, ...names: string[]): string {
  return verb + names.map((name) => name.charAt(0).toUpperCase() + name.slice(1)).join('');
}
