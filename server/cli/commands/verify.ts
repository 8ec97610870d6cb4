// leasehold verify: replays the event log and reports every row that contradicts it. Exit code 1 on violations.
import { type Command, InvalidArgumentError } from 'commander';
import { problem } from '../../kernel/errors.ts';
import { getTenant, readAllTenants } from '../../tenants/tenant-store.ts';
import type { Anchor, SealReport } from '../../verify/verify-seals.ts';
import { type Verification, verifyTenant } from '../../verify/verify-tenant.ts';
import type { Violation } from '../../verify/violation.ts';
import { ProgressBar } from '../output.ts';
import type { Session } from '../session.ts';

export function addVerifyCommand(program: Command, session: Session): void {
  program
    .command('verify')
    .description('verify jobs, lanes and the event log itself against the log and its seals')
    .option('--tenant <slug>', 'only this tenant')
    .option('--anchor <number:hash>', 'a seal that was kept outside the database; needs --tenant', parseAnchor)
    .action(async (options: { tenant?: string; anchor?: Anchor }) => {
      if (options.anchor && options.tenant === undefined) throw problem('INVALID_FIELD', '--anchor needs --tenant');
      const db = await session.database();
      const tenants =
        options.tenant === undefined
          ? (await readAllTenants(db)).filter((tenant) => tenant.status === 'ACTIVE' || tenant.status === 'SUSPENDED')
          : [await getTenant(db, options.tenant)];
      const results = [];
      const bar = new ProgressBar(session, 'tenants');
      for (const tenant of tenants) {
        bar.show(results.length, tenants.length);
        const found = await verifyTenant(db, tenant.schema, options.anchor ? { anchor: options.anchor } : {});
        results.push({ tenant: tenant.slug, ...toApi(found), text: describe(tenant.slug, found) });
      }
      bar.end();
      session.print(
        results.map(({ text: _, ...result }) => result),
        results.map((result) => result.text).join('\n') || 'no tenants',
      );
      const count = results.reduce((sum, result) => sum + result.fault_count, 0);
      if (count > 0) throw problem('CONFLICT', `${count} violation${count === 1 ? '' : 's'} found`);
    });
}

function parseAnchor(text: string): Anchor {
  const [, number, hash] = /^(\d{1,18}):((?:02)?[0-9a-f]{64})$/.exec(text) ?? [];
  if (!number || !hash) throw new InvalidArgumentError('It has the form <number>:<hash>, as `verify` prints it.');
  return { number, hash };
}

function toApi({ seals, jobs, lanes, setAside, violations, violationCount }: Verification) {
  return {
    ok: violationCount === 0,
    jobs: jobs.jobs,
    job_events: jobs.events,
    targets: lanes.targets,
    starts: lanes.starts,
    seals: seals.seals,
    pruned_seals: seals.prunedSeals,
    sealed_events: seals.sealedEvents,
    unsealed_events: seals.unsealedEvents,
    set_aside_events: setAside,
    compared_jobs: seals.comparedJobs,
    former_seals: seals.formerSeals,
    restarts: seals.restarts,
    last_prune: seals.lastPrune
      ? {
          seal: seals.lastPrune.seal,
          at: toTime(seals.lastPrune.at),
          older_than_seconds: seals.lastPrune.olderThanSeconds,
        }
      : null,
    anchor: seals.end ? `${seals.end.number}:${seals.end.hash}` : null,
    // The names of the fields are those of the first version.
    fault_count: violationCount,
    faults: violations.map((violation) => ({
      kind: violation.kind,
      event: violation.event ?? null,
      seal: violation.seal ?? null,
      job_id: violation.jobId ?? null,
      target_id: violation.targetId ?? null,
      detail: violation.detail,
    })),
  };
}

function describe(slug: string, found: Verification): string {
  const { seals, jobs, lanes, setAside, violations, violationCount } = found;
  const lines = [
    `${slug}: ${violationCount === 0 ? 'ok' : `${violationCount} VIOLATIONS`}; ${jobs.jobs} jobs, ${lanes.starts} starts on ${lanes.targets} targets, ` +
      `${seals.sealedEvents} sealed and ${seals.unsealedEvents} not yet sealed events`,
  ];
  if (seals.lastPrune) lines.push(`  ${describePrunes(seals)}`);
  for (const seal of seals.restarts) {
    lines.push(
      `  restart at seal ${seal}: from there on the log has other transaction ids, as after a restored backup`,
    );
  }
  if (seals.end) lines.push(`  anchor ${seals.end.number}:${seals.end.hash}`);
  for (const [follower, count] of Object.entries(setAside)) lines.push(`  ${follower} set ${count} events aside`);
  for (const violation of violations) lines.push(`  ${name(violation)}: ${violation.detail}`);
  if (violationCount > violations.length) lines.push(`  and ${violationCount - violations.length} more`);
  return lines.join('\n');
}

/** For comparison with the configured retention: a forged removal would be listed here. */
function describePrunes({ prunedSeals, lastPrune }: SealReport): string {
  const terms =
    lastPrune?.olderThanSeconds == null ? '' : `, of events kept for ${lastPrune.olderThanSeconds / 86_400} days`;
  return `pruned seals ${prunedSeals}, last recorded by seal ${lastPrune?.seal} at ${toTime(lastPrune?.at ?? '0')}${terms}`;
}

function toTime(microseconds: string): string {
  return new Date(Number(BigInt(microseconds) / 1000n)).toISOString();
}

function name(violation: Violation): string {
  const parts = [
    violation.kind,
    violation.event && `event ${violation.event}`,
    violation.seal && `seal ${violation.seal}`,
    violation.jobId && `job ${violation.jobId}`,
    violation.targetId && `target ${violation.targetId}`,
  ];
  return parts.filter(Boolean).join(' ');
}
