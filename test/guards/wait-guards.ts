// Guards of waits, flows, schedules, keys, limits and budgets.
import type { Guard } from './guard.ts';

export const waitGuards: readonly Guard[] = [
  {
    name: 'a parent waits for its children',
    prevents: 'a parent goes on, and completes, before its children have ended',
    file: 'server/jobs/flows/fenced-children.ts',
    edits: [{ search: '(count(*) filter (where not ended))::int as unfinished', replace: '0 as unfinished' }],
    tests: ['test/integration/durable/fan-out.test.ts', 'test/integration/durable/waits-under-faults.test.ts'],
  },
  {
    name: 'an end that came before the wait is found',
    prevents: 'a job waits for ever for children that ended while it began to wait',
    file: 'server/jobs/flows/follow-dependencies.ts',
    edits: [
      { search: `waiting: idsOf((status) => status === 'WAITING'),`, replace: 'waiting: [],' },
      { search: `where (c.to_status <> 'WAITING' and exists`, replace: 'where (exists' },
    ],
    tests: ['test/integration/jobs/flows/dependencies.test.ts', 'test/integration/durable/waits-in-a-race.test.ts'],
  },
  {
    name: 'only ended jobs release others',
    prevents: 'a job that runs after another starts before that has ended',
    file: 'server/jobs/flows/resolve-dependencies.ts',
    edits: [
      {
        search: `        or \${statusIn(terminalStatuses, 'j.status')}\n`,
        replace: `        or j.status <> 'ERROR'\n`,
      },
    ],
    tests: ['test/integration/jobs/flows/dependencies.test.ts', 'test/integration/http/resources/jobs/flows.test.ts'],
  },
  {
    name: 'children wait for their turn',
    prevents: 'more children of a call run at once than it allows',
    file: 'server/jobs/flows/resolve-dependencies.ts',
    edits: [{ search: 'limit greatest(f.places, 0)', replace: 'limit 1000000' }],
    tests: ['test/integration/durable/fan-out.test.ts'],
  },
  {
    name: 'children end with their parent',
    prevents: 'children of a canceled job start and run on',
    file: 'server/jobs/flows/follow-dependencies.ts',
    edits: [{ search: `     set state = 'canceling'\n`, replace: '     set state = d.state\n' }],
    tests: ['test/integration/durable/fan-out.test.ts', 'test/integration/durable/waits-under-faults.test.ts'],
  },
  {
    name: 'waits end at their time',
    prevents: 'a job that waits or is scheduled for later is queued before its time',
    file: 'server/jobs/finish/due-jobs.ts',
    edits: [
      { search: '     and j.run_at <= now()\n   order by j.run_at, j.id\n', replace: '   order by j.run_at, j.id\n' },
      { search: `over, actor, 'j.run_at <= now()');`, replace: 'over, actor);' },
      { search: `    extraGuard: 'j.run_at <= now()',\n`, replace: '' },
    ],
    tests: ['test/integration/durable/durable-sleep.test.ts', 'test/integration/jobs/finish/due-jobs.test.ts'],
  },
  {
    name: 'a due job is read again under its lock',
    prevents: 'a job that another sweep has reminded is woken without its answer',
    file: 'server/jobs/finish/due-jobs.ts',
    edits: [
      {
        search: `     and j.status = 'WAITING'\n     and j.run_at <= now()\n   order by j.id\n     for update`,
        replace: `     and j.status = 'WAITING'\n   order by j.id\n     for update`,
      },
      { search: `over, actor, 'j.run_at <= now()');`, replace: 'over, actor);' },
    ],
    tests: ['test/integration/jobs/questions/two-sweeps.test.ts'],
  },
  {
    name: 'only open questions expire',
    prevents: 'the default answer replaces that of a person',
    file: 'server/jobs/questions/due-questions.ts',
    edits: [
      {
        search: `       and q.status = 'open'\n       and q.expires_at <= now()\n`,
        replace: '       and q.expires_at <= now()\n',
      },
    ],
    tests: ['test/integration/jobs/questions/two-sweeps.test.ts'],
  },
  {
    name: 'each time of a schedule is fired once',
    prevents: 'two daemons enqueue a job for the same time of a schedule',
    file: 'server/schedules/fire-schedules.ts',
    edits: [{ search: '     for update skip locked`);', replace: '`);' }],
    tests: ['test/integration/schedules/fire-schedules.test.ts'],
  },
  {
    name: 'a schedule goes on from its last time',
    prevents: 'times that came while no daemon ran are forgotten',
    file: 'server/schedules/cron.ts',
    edits: [{ search: '      return missed.slice(-maxMissedRuns);\n', replace: '      return [];\n' }],
    tests: ['test/unit/schedules/cron.test.ts', 'test/integration/schedules/fire-schedules.test.ts'],
  },
  {
    name: 'unique keys are locked',
    prevents: 'two requests at the same time make two jobs with one key',
    file: 'server/jobs/enqueue/unique-jobs.ts',
    edits: [
      {
        search: '  on conflict (type, key) do update\n     set used_at = excluded.used_at`);',
        replace: '  on conflict (type, key) do nothing`);',
      },
    ],
    tests: ['test/integration/jobs/enqueue/unique-jobs.test.ts'],
  },
  {
    name: 'rates take tokens',
    prevents: 'more jobs start in a time than their limit allows',
    file: 'server/jobs/limits/gate.ts',
    edits: [
      {
        search: '+ coalesce(t.tokens, 0) * r.seconds * interval',
        replace: '+ 0 * coalesce(t.tokens, 0) * r.seconds * interval',
      },
    ],
    tests: ['test/integration/jobs/limits/gate.test.ts'],
  },
  {
    name: 'budgets stop jobs',
    prevents: 'a job uses more than its budget, and goes on',
    file: 'server/jobs/model/job-budget.ts',
    edits: [
      {
        search: 'if (limit > 0 && amount > limit) return { unit,',
        replace: 'if (limit < 0 && amount > limit) return { unit,',
      },
    ],
    tests: ['test/integration/worker/attempt/budgets.test.ts'],
  },
];
