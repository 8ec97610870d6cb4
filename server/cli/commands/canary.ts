// leasehold canary …: let one job of a held target, or of a filter, run before the others.
import type { Command } from 'commander';
import type { Database } from '../../database/database.ts';
import { createOperation } from '../../jobs/actions/bulk-operations.ts';
import { startCanary } from '../../jobs/actions/start-canary.ts';
import { getTenant } from '../../tenants/tenant-store.ts';
import { facts } from '../output.ts';
import type { Session } from '../session.ts';

interface AuditOptions {
  reason?: string;
  author?: string;
}

interface FilterOptions extends AuditOptions {
  type?: string;
  queue?: string;
  target?: string;
  search?: string;
}

/** In the log: actions of this command name no key. */
const actor = 'cli';

export function addCanaryCommands(program: Command, session: Session): void {
  const canary = program.command('canary').description('let one held job run, and the others only if it succeeds');
  addTarget(canary, session);
  addJobs(canary, session);
}

function addTarget(canary: Command, session: Session): void {
  withAudit(canary.command('target <tenant> <target>'))
    .description('the job that holds a target, or the next of a paused one; the lane resumes if it succeeds')
    .action(async (slug: string, targetId: string, options: AuditOptions) => {
      const db = await session.database();
      const { schema } = await getTenant(db, slug);
      const target = await startCanary(db, schema, { targetId, actor, ...options });
      session.print(
        { target_id: target.id, canary_job_id: target.canaryJobId },
        facts({ target: target.id, canary: target.canaryJobId ?? '' }),
      );
    });
}

function addJobs(canary: Command, session: Session): void {
  withAudit(canary.command('jobs <tenant>'))
    .description('the oldest held job that matches; the others are resumed if it succeeds')
    .option('--type <type>', 'only jobs of this type')
    .option('--queue <queue>', 'only jobs of this queue')
    .option('--target <target>', 'only jobs of this target')
    .option('--search <text>', 'part of the type or the target, or the beginning of the id')
    .action(async (slug: string, options: FilterOptions) => {
      const operation = await resumeWithCanary(await session.database(), slug, options);
      session.print(
        { operation_id: operation.id, matched: operation.matched },
        facts({ operation: operation.id, matched: String(operation.matched) }),
      );
    });
}

async function resumeWithCanary(db: Database, slug: string, options: FilterOptions) {
  const { schema } = await getTenant(db, slug);
  const { type, queue, target: targetId, search, author, reason } = options;
  return createOperation(db, schema, {
    action: 'resume',
    filter: { type, queue, targetId, search },
    author,
    reason,
    canary: true,
  });
}

function withAudit(command: Command): Command {
  return command
    .option('--reason <text>', 'recorded in the history')
    .option('--author <name>', 'the person or program that acts, recorded in the history');
}
