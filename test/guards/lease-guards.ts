// Guards of statuses, lanes, leases, daemons and attempts.
import type { Guard } from './guard.ts';

export const leaseGuards: readonly Guard[] = [
  {
    name: 'status guard',
    prevents: 'a late outcome or sweep overwrites a job that has ended',
    file: 'server/jobs/transition.ts',
    edits: [{ search: `        where \${where}\n          and \${guard()}\n`, replace: `        where \${where}\n` }],
    tests: ['test/integration/jobs/model/transitions.test.ts'],
  },
  {
    name: 'lease fence of outcomes',
    prevents: 'a stale worker ends the attempt of its successor',
    file: 'server/jobs/finish/finish-statement.ts',
    edits: [
      {
        search: `       and j.lease_id = \${oneLease ? ':leaseId::uuid' : \`(\${entrySql} ->> 'lease')::uuid\`}\n`,
        replace: `       and (\${oneLease ? ':leaseId::uuid' : \`(\${entrySql} ->> 'lease')::uuid\`}) is not null\n`,
      },
    ],
    tests: ['test/integration/jobs/finish/races.test.ts'],
  },
  {
    name: 'lease fence of other writes',
    prevents: 'a stale worker writes progress, usage or checkpoints',
    file: 'server/jobs/claim/lease.ts',
    edits: [{ search: '       and j.lease_id = :leaseId\n', replace: '       and :leaseId::uuid is not null\n' }],
    tests: ['test/integration/worker/attempt/context.test.ts'],
  },
  {
    name: 'lane lock',
    prevents: 'two changes of one lane miss each other, and it gets no head or two',
    file: 'server/jobs/lanes/lane.ts',
    edits: [
      {
        search: '       for no key update\n  )\n  select count(*) from locked',
        replace: '  )\n  select count(*) from locked',
      },
    ],
    tests: ['test/integration/jobs/lanes/lane.test.ts', 'test/integration/jobs/lanes/advance.test.ts'],
  },
  {
    name: 'only heads are claimed',
    prevents: 'jobs of one target run at the same time, or out of order',
    file: 'server/jobs/claim/claim.ts',
    edits: [
      {
        search: `  daemon: isClaimable('daemon', 'j.'),`,
        replace: `  daemon: isClaimable('daemon', 'j.').replace('j.lane_head and', ''),`,
      },
    ],
    tests: ['test/integration/jobs/lanes/lane.test.ts'],
  },
  {
    name: 'unique index of heads',
    prevents: 'a lane gets a second head',
    file: 'migrations/tenant/0000_initial.sql',
    edits: [{ search: 'CREATE UNIQUE INDEX "jobs_target_id_head"', replace: 'CREATE INDEX "jobs_target_id_head"' }],
    tests: ['test/integration/jobs/lanes/lane.test.ts'],
  },
  {
    name: 'expiry is checked again under the lock',
    prevents: 'the sweeper ends a lease that was renewed after it had been read',
    file: 'server/jobs/finish/recover.ts',
    edits: [
      {
        search: `(:overdueSeconds::float8 is null or expires_at < now() - :overdueSeconds::float8 * interval '1 second')`,
        replace: '(:overdueSeconds::float8 is null or true)',
      },
    ],
    tests: ['test/integration/jobs/finish/races.test.ts'],
  },
  {
    name: 'a lease ends only without RUNNING jobs',
    prevents: 'a job stays RUNNING without a lease after its outcome was given up or lost',
    file: 'server/jobs/claim/lease.ts',
    edits: [{ search: `            ) = '{}'`, replace: `            ) is not null` }],
    tests: ['test/integration/worker/loop/unwritten-outcomes.test.ts'],
    scenario: 'a1',
  },
  {
    name: 'limit for idle transactions',
    prevents: 'a frozen daemon keeps the locks of its lanes',
    file: 'server/database/connections/session-limits.ts',
    edits: [{ search: 'idleInTransactionMs = 3_000', replace: 'idleInTransactionMs = 300_000' }],
    tests: ['test/acceptance/frozen-daemon.test.ts'],
    scenario: 'a2',
  },
  {
    name: 'trust before start',
    prevents: 'a handler starts under a lease that is over',
    file: 'server/worker/loop/running-attempts.ts',
    edits: [{ search: 'if (heartbeat.isTrusted(attempt.leaseId)) {', replace: 'if (heartbeat !== undefined) {' }],
    tests: ['test/integration/worker/loop/late-claims.test.ts'],
    scenario: 'a3',
  },
  {
    name: 'stop requests are read before a late start',
    prevents: 'a handler begins long after the cancel of its job was acknowledged',
    file: 'server/worker/loop/running-attempts.ts',
    edits: [{ search: 'if (isLate && heartbeat.isTrusted(attempt.leaseId))', replace: 'if (isLate && false)' }],
    tests: ['test/integration/worker/loop/late-starts.test.ts'],
  },
  {
    name: 'stop requests are read before a late start in a thread',
    prevents: 'a handler that waited for its thread begins long after the cancel of its job was acknowledged',
    file: 'server/worker/threads/handler-thread.ts',
    edits: [{ search: '      await this.#readStopRequests(message.startUntilMs, stopping.signal);\n', replace: '' }],
    tests: ['test/integration/worker/threads/isolated-handlers.test.ts'],
  },
  {
    name: 'stop requests are read before a late start of a remote worker',
    prevents: 'a handler of a remote worker begins long after the cancel of its job was acknowledged',
    file: 'server/remote-worker/worker.ts',
    edits: [
      {
        search: '        await this.#confirm(held, answerLost ? Number.NEGATIVE_INFINITY : sentAt);\n',
        replace: '',
      },
    ],
    tests: ['test/integration/scheduler/worker-calls.test.ts'],
  },
  {
    name: 'a claim that was given up is released for ever',
    prevents: 'a claim that arrives late takes jobs that nobody runs',
    file: 'server/jobs/claim/release-claim.ts',
    edits: [{ search: '  if (await reserveLeaseId(db, schema, leaseId, kind, actor)) return 0;\n', replace: '' }],
    tests: ['test/integration/worker/loop/late-claims.test.ts'],
    scenario: 'a4',
  },
  {
    name: 'lost claims are released',
    prevents: 'jobs of a claim whose answer was lost wait for their lease to run out, and pay an attempt',
    file: 'server/worker/loop/claimer.ts',
    edits: [{ search: '    this.#lostLeaseIds.push(leaseId);\n', replace: '' }],
    tests: ['test/integration/worker/loop/lost-claims.test.ts'],
  },
  {
    name: 'trust before durable calls and after them',
    prevents: 'a durable step begins although its lease ran out while the process was suspended',
    file: 'server/durable/stop-reason.ts',
    edits: [
      { search: '  await stopping.check?.();\n  if (stopReasonOf', replace: '  if (stopReasonOf' },
      { search: '  await stopping.check?.();\n  throwIfStopped', replace: '  throwIfStopped' },
    ],
    tests: ['test/integration/durable/suspended-process.test.ts'],
    scenario: 'a10',
  },
  {
    name: 'clock after the answer of assert',
    prevents: 'a handler acts on an answer that it reads after a freeze',
    file: 'server/worker/attempt/database-effects.ts',
    edits: [
      {
        search: '      await throwIfLeaseLost(this.#run);\n      if (leftMs === undefined) {',
        replace: '      if (leftMs === undefined) {',
      },
      { search: 'if (monotonicMs() < sentAt + leftMs) return {', replace: 'return {' },
    ],
    tests: ['test/integration/worker/attempt/context.test.ts'],
    scenario: 'a5',
  },
  {
    name: 'time of webhooks',
    prevents: 'receivers refuse webhooks of a daemon whose clock is wrong',
    file: 'server/webhooks/dispatcher.ts',
    edits: [{ search: 'const at = new Date(claimed_at);', replace: 'const at = new Date(claimed_at && Date.now());' }],
    tests: ['test/integration/webhooks/dispatcher.test.ts'],
    scenario: 'a6',
  },
  {
    name: 'a restarted daemon takes its row over',
    prevents: 'a daemon that is restarted under its name counts as lost',
    file: 'server/daemon-registry/registration.ts',
    edits: [{ search: 'where :takeOver::boolean\n', replace: 'where (:takeOver::boolean and false)\n' }],
    tests: ['test/integration/daemon-registry'],
    scenario: 'a7',
  },
  {
    name: 'a job keeps its lane while its handler runs',
    prevents: 'the next job of a lane starts beside a handler that ignores its signal',
    file: 'server/worker/loop/tenant-loop.ts',
    edits: [
      {
        search: 'if (attempt.unresponsive !== undefined) void this.#awaitUnresponsive(',
        replace: 'if (attempt.unresponsive !== undefined && attempt.endedAt < 0) void this.#awaitUnresponsive(',
      },
    ],
    tests: ['test/integration/worker/attempt/unresponsive-handler.test.ts'],
    scenario: 'a8',
  },
  {
    name: 'attempts wait for a handler that still runs',
    prevents: 'the next attempt runs beside a handler that ignores its signal',
    file: 'server/worker/loop/running-attempts.ts',
    edits: [
      {
        search: 'this.ready.add(this.#unresponsive.admit(attempts), claimed.isCut);',
        replace: 'this.ready.add(attempts);',
      },
    ],
    tests: ['test/integration/worker/attempt/unresponsive-handler.test.ts'],
  },
  {
    name: 'older timelines are refused',
    prevents: 'a daemon writes to a primary that was replaced',
    file: 'server/database/servers/servers.ts',
    edits: [{ search: 'writable.filter((server) => !this.#isOutdated(server))', replace: 'writable' }],
    tests: ['test/acceptance/failover.test.ts', '-t', 'of two servers'],
  },
  {
    name: 'readiness needs writes',
    prevents: 'a daemon whose writes fail gets requests',
    file: 'server/database/servers/write-check.ts',
    edits: [
      {
        search: '(error: unknown): WriteCheckResult => failure(error),',
        replace: '(error: unknown): WriteCheckResult => ({ ...failure(error), ok: true }),',
      },
    ],
    tests: ['test/integration/http/server.test.ts'],
    scenario: 'a9',
  },
  {
    name: 'readiness needs new pages',
    prevents: 'a daemon whose database has a full disk gets requests until one of them fails',
    file: 'server/database/servers/write-check.ts',
    edits: [{ search: 'generate_series(1, 512)', replace: 'generate_series(1, 1)' }],
    tests: ['test/acceptance/full-disk.test.ts'],
  },
  {
    name: 'errors of a disk may pass',
    prevents: 'an outcome is given up because the disk of the database fails for a moment',
    file: 'server/database/sql-errors.ts',
    edits: [{ search: '/^(58|25006$|53100$)/', replace: '/^(25006$|53100$)/' }],
    tests: ['test/unit/database/sql-errors.test.ts', 'test/integration/http/resources/jobs/operations.test.ts'],
  },
  {
    name: 'stop requests win over retries',
    prevents: 'a job that was canceled or paused starts again',
    file: 'server/jobs/finish/stop-decisions.ts',
    edits: [{ search: `? 'j.cancel_intent is null' :`, replace: `? 'true' :` }],
    tests: ['test/integration/jobs/finish/stop-decisions.test.ts'],
  },
  {
    name: 'maximum of attempts',
    prevents: 'a job whose workers die starts for ever',
    file: 'server/jobs/finish/recover.ts',
    edits: [{ search: `  if (!attemptsLeft(job)) return { kind: 'fail', error };\n`, replace: '' }],
    tests: ['test/integration/jobs/engine-model.test.ts'],
  },
  {
    name: 'only active leases are renewed',
    prevents: 'a worker keeps a lease that the sweeper has ended',
    file: 'server/jobs/claim/lease.ts',
    edits: [
      {
        search: `       and state = 'ACTIVE'\n    returning id, job_ids`,
        replace: '    returning id, job_ids',
      },
    ],
    tests: ['test/integration/jobs/finish/races.test.ts'],
  },
  {
    name: 'blocked event loops lose their leases',
    prevents: 'a process that cannot stop its handlers keeps their leases for ever',
    file: 'server/worker/heartbeat/heartbeat-thread.ts',
    edits: [
      {
        search: 'if (mainLoopIsBlocked(held.size)) post(',
        replace: 'if (mainLoopIsBlocked(held.size) && held.size < 0) post(',
      },
    ],
    tests: ['test/integration/worker/heartbeat/heartbeat.test.ts'],
  },
  {
    name: 'no lease ends under a job',
    prevents: 'a lease is ended or deleted although a job is owned under it',
    file: 'migrations/tenant/0032_lease_end_plans.sql',
    edits: [{ search: 'IF NOT is_active THEN', replace: 'IF false AND NOT is_active THEN' }],
    tests: ['test/integration/maintenance/missing-leases.test.ts'],
  },
  {
    name: 'jobs without a lease are found by the sweep',
    prevents: 'a job whose lease is missing stays RUNNING for ever',
    file: 'server/jobs/finish/due-jobs.ts',
    edits: [
      {
        search: `array(select j.id from j where \${hasNoLease(tenant)}) as unleased`,
        replace: `array(select j.id from j where false and \${hasNoLease(tenant)}) as unleased`,
      },
    ],
    tests: ['test/integration/maintenance/missing-leases.test.ts'],
  },
  {
    name: 'one slot of a worker per lease',
    prevents: 'two slots of a remote worker start one job under the same lease',
    file: 'server/remote-worker/worker.ts',
    edits: [{ search: '    if (this.#known.has(leaseId)) return false;\n', replace: '' }],
    tests: ['test/unit/remote-worker/worker.test.ts'],
  },
  {
    name: 'an unused lease is for its request',
    prevents: 'the server gives the lease of one slot of a remote worker to another',
    file: 'server/scheduler/request-lease.ts',
    edits: [
      { search: 'is not distinct from :requestId::text)', replace: 'is not distinct from :requestId::text or true)' },
    ],
    tests: ['test/integration/scheduler/leases.test.ts'],
  },
];
