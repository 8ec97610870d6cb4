// The registry of job types that this daemon can run. Filled once at boot, then only read.
import type { CheckedPayload, JobTypes, TypeDefaults } from '../../jobs/enqueue/job-types.ts';
import { defaultBackoff } from '../../kernel/backoff.ts';
import { missingField } from '../../kernel/fields.ts';
import { formatPath } from '../../kernel/json/json-violations.ts';
import type { LimitSetting } from '../../tenants/named-settings.ts';
import type { ThreadPool } from '../threads/thread-pool.ts';
import type { JobDefinition, JobLimit } from './define-job.ts';

export class HandlerRegistry implements JobTypes {
  #definitions = new Map<string, JobDefinition>();
  #defaults = new Map<string, TypeDefaults>();
  readonly #types: readonly string[];

  readonly threads: ThreadPool | undefined;

  /** Without `threads` every handler runs in this thread, whatever its isolation. */
  constructor(definitions: Iterable<JobDefinition>, threads?: ThreadPool) {
    this.threads = threads;
    for (const given of definitions) {
      const definition = isolated(given, threads);
      if (this.#definitions.has(definition.type)) throw new Error(`two handlers for job type "${definition.type}"`);
      this.#definitions.set(definition.type, definition);
      this.#defaults.set(definition.type, defaultsOf(definition));
    }
    this.#types = [...this.#definitions.keys()].sort();
  }

  get(type: string): JobDefinition | undefined {
    return this.#definitions.get(type);
  }

  has(type: string): boolean {
    return this.#definitions.has(type);
  }

  types(): readonly string[] {
    return this.#types;
  }

  defaults(type: string): TypeDefaults {
    return this.#defaults.get(type) ?? {};
  }

  checkPayload(type: string, payload: unknown): CheckedPayload {
    const schema = this.#definitions.get(type)?.payload;
    if (schema === undefined) return { ok: true, payload };
    const parsed = schema.safeParse(payload, { error: missingField });
    // The payload is stored as given: the schema's output (such as dates) need not be JSON, and is produced when the
    // job runs.
    if (parsed.success) return { ok: true, payload };
    const issue = parsed.error.issues[0];
    const field = formatPath(['payload', ...(issue?.path ?? [])]);
    return { ok: false, field, message: issue?.message ?? 'is not valid' };
  }
}

function isolated(definition: JobDefinition, threads: ThreadPool | undefined): JobDefinition {
  if (definition.isolation !== 'thread' || threads === undefined) return definition;
  const { type, file } = definition;
  if (file === undefined) throw new Error(`job "${type}" asks for a thread, which needs a module to load it from`);
  return { ...definition, isolate: (parts, kill) => threads.run({ file, type }, parts, kill) };
}

/** A limit without a name is named after the type; a second one gets a number. */
function namedLimits(type: string, limits: readonly JobLimit[]): Record<string, LimitSetting> {
  return Object.fromEntries(
    limits.map(({ name, ...limit }, n) => [name ?? (n === 0 ? type : `${type}-${n + 1}`), limit as LimitSetting]),
  );
}

function defaultsOf(definition: JobDefinition): TypeDefaults {
  const { retry, timeoutSeconds, onError, phases, limits } = definition;
  const { attempts, on, ...backoff } = retry ?? {};
  return {
    ...(attempts !== undefined && { maxAttempts: attempts }),
    ...(retry !== undefined && {
      retry: { ...defaultBackoff, ...backoff, ...(Array.isArray(on) && { codes: [...on] }) },
    }),
    ...(timeoutSeconds !== undefined && { timeoutSeconds }),
    ...(onError !== undefined && { onError }),
    ...(phases !== undefined && { phases: phases.map((phase) => phase.name) }),
    ...(limits !== undefined && limits.length > 0 && { limits: namedLimits(definition.type, limits) }),
  };
}
