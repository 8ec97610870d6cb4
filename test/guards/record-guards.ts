// Guards of requests, events, waits and tenants.
import type { Guard } from './guard.ts';

export const recordGuards: readonly Guard[] = [
  {
    name: 'idempotency keys',
    prevents: 'a repeated request makes a second job',
    file: 'server/jobs/enqueue/place-jobs.ts',
    edits: [
      { search: '  row.id ??= newId();\n', replace: '  row.id ??= newId();\n  row.clientRequestId = undefined;\n' },
    ],
    tests: ['test/integration/http/resources/jobs/create-jobs.test.ts'],
  },
  {
    name: 'idempotency conflicts',
    prevents: 'another request with the same key is answered with a job that it did not ask for',
    file: 'server/jobs/enqueue/enqueue.ts',
    edits: [{ search: `isSameRequest(asked, job) ? 'replayed' : 'conflict'`, replace: `'replayed'` }],
    tests: ['test/integration/http/resources/jobs/create-jobs.test.ts'],
  },
  {
    name: 'events of transactions that commit late',
    prevents: 'a reader of events misses some',
    file: 'server/events/log/read-new-events.ts',
    edits: [
      {
        search: 'where e.xid = any(array(select pg_snapshot_xip(:seen::pg_snapshot)))\n',
        replace: 'where e.xid = any(array(select pg_snapshot_xip(:seen::pg_snapshot))) and false\n',
      },
    ],
    tests: ['test/integration/events/log/read-new-events.test.ts'],
  },
  {
    name: 'positions end with the last event',
    prevents: 'a reader misses events whose transaction ids a crashed server gave out again',
    file: 'server/events/log/transaction-ids.ts',
    edits: [
      {
        search: 'order by e.xid desc, e.seq desc limit 1)) as next',
        replace: 'order by e.xid desc, e.seq desc limit 1), pg_snapshot_xmax(p.present)) as next',
      },
    ],
    tests: ['test/integration/events/log/reused-transaction-ids.test.ts'],
  },
  {
    name: 'seals cover the content of events',
    prevents: 'an event is changed, and nobody notices',
    file: 'server/events/seals/seal.ts',
    edits: [{ search: 'e.lease_id, e.actor, e.data`;', replace: 'e.lease_id, e.actor`;' }],
    tests: ['test/integration/verify/attacks.test.ts', 'test/integration/verify/verify-tenant.test.ts'],
  },
  {
    name: 'seals are chained',
    prevents: 'a block of events is replaced, and nobody notices',
    file: 'server/events/seals/seal-chain.ts',
    edits: [
      {
        search: `    .update(JSON.stringify(['leasehold seal 2', number, record]))\n    .update(previousHash)\n`,
        replace: `    .update(JSON.stringify(['leasehold seal 2', number, record, typeof previousHash]))\n`,
      },
    ],
    tests: ['test/integration/verify/attacks.test.ts', 'test/integration/verify/verify-tenant.test.ts'],
  },
  {
    name: 'stored steps are returned',
    prevents: 'a durable step runs again after it was stored',
    file: 'server/durable/durable-calls.ts',
    edits: [{ search: `      if (stored?.status === 'completed') return stored.result as T;\n`, replace: '' }],
    tests: ['test/integration/durable/durable-steps.test.ts'],
  },
  {
    name: 'stored phases do not run again',
    prevents: 'a phase runs again after it was stored',
    file: 'server/worker/attempt/run-all-phases.ts',
    edits: [
      {
        search: `  if (status === 'completed' || status === 'partial') return { status, result, message: message ?? undefined };\n`,
        replace: '',
      },
    ],
    tests: ['test/integration/worker/attempt/run-all-phases.test.ts'],
  },
  {
    name: 'phases keep their order',
    prevents: 'a deploy puts a phase before one that has ended, and the job continues as if it had run',
    file: 'server/worker/attempt/run-all-phases.ts',
    edits: [{ search: '    if (position < next) {\n', replace: '    if (position < 0) {\n' }],
    tests: ['test/integration/durable/compared-runs.test.ts'],
  },
  {
    name: 'a phase starts once',
    prevents: 'a start whose answer was lost counts as another try',
    file: 'server/jobs/attempt/save-steps.ts',
    edits: [{ search: `then p.attempt < excluded.attempt`, replace: `then p.attempt <= excluded.attempt` }],
    tests: ['test/integration/jobs/attempt/step-group-commit.test.ts'],
  },
  {
    name: 'a stored result stays',
    prevents: 'a write that arrives late erases the result of a phase or step, and it runs again',
    file: 'server/jobs/attempt/save-steps.ts',
    edits: [
      {
        search: `(p.status not in ('completed', 'partial', 'skipped') or p.kind not in ('phase', 'step'))`,
        replace: 'true',
      },
    ],
    tests: ['test/integration/jobs/attempt/step-group-commit.test.ts'],
  },
  {
    name: 'keys belong to their owner',
    prevents: 'a tenant reads or revokes the key of another',
    file: 'server/tenants/api-keys/key-store.ts',
    edits: [
      {
        search: `.where(and(eq(apiKeys.id, id), sql\`\${apiKeys.tenantId} is not distinct from \${tenantId}::uuid\`)),`,
        replace: `.where(and(eq(apiKeys.id, id), sql\`\${tenantId}::uuid is not distinct from \${tenantId}::uuid\`)),`,
      },
    ],
    tests: ['test/integration/tenants/api-keys', 'test/integration/http/resources/keys.test.ts'],
  },
  {
    name: 'unique keys',
    prevents: 'two unfinished jobs of a type hold one key',
    file: 'server/jobs/enqueue/unique-jobs.ts',
    edits: [{ search: `else u.until = 'finished' or j.attempt = 0`, replace: 'else false' }],
    tests: ['test/integration/jobs/enqueue/unique-jobs.test.ts'],
  },
  {
    name: 'limits count running jobs',
    prevents: 'more jobs run at once than a limit allows',
    file: 'server/jobs/limits/gate.ts',
    edits: [{ search: 'l.concurrency - coalesce(u.running, 0) as slots', replace: 'l.concurrency as slots' }],
    tests: ['test/integration/jobs/limits/gate.test.ts'],
  },
  {
    name: 'a role for each tenant',
    prevents: 'a statement that names the schema of another tenant is run',
    file: 'server/database/connections/tenant-roles.ts',
    edits: [
      {
        search: `role \${role === ownRole ? 'none' : role}\``,
        replace: `role \${role === ownRole ? 'none' : 'none'}\``,
      },
    ],
    tests: ['test/integration/database/connections/tenant-roles.test.ts'],
  },
  {
    name: 'one answer counts',
    prevents: 'a second answer replaces the first',
    file: 'server/jobs/questions/answer.ts',
    edits: [
      { search: `       and q.status = 'open'\n    returning q.*`, replace: '    returning q.*' },
      { search: `  if (status !== 'open') return status;\n`, replace: `  if (status === 'canceled') return status;\n` },
    ],
    tests: ['test/integration/jobs/questions/questions.test.ts'],
  },
  {
    name: 'an event from outside reaches a waiting job once',
    prevents: 'an event whose delivery is repeated ends a second wait of the same job',
    file: 'server/jobs/received/deliver-events.ts',
    edits: [{ search: `          limit 1\n       ) = '{}'\``, replace: `          limit 1\n       ) is not null\`` }],
    tests: ['test/integration/jobs/received/deliver-events.test.ts'],
  },
  {
    name: 'an event that came before the wait is found',
    prevents: 'a job waits for an event that has come already',
    file: 'server/jobs/attempt/event-waits.ts',
    edits: [{ search: '     where e.name = :event\n', replace: '     where e.name = :event\n       and false\n' }],
    tests: ['test/integration/jobs/received/deliver-events.test.ts', 'test/integration/durable/wait-for-event.test.ts'],
  },
  {
    name: 'bulk operations pass over no job',
    prevents: 'a job is left alone because the database refused a write for a moment',
    file: 'server/jobs/actions/run-bulk-operations.ts',
    edits: [{ search: ' && !isTransient(error);', replace: ';' }],
    tests: ['test/integration/http/resources/jobs/operations.test.ts'],
  },
];
