// Types of payloads and results from a job's definition. A result of `defineJob` fits; `import type` is enough.

/** The part of a `defineJob` result that the client needs. `types` exists for the compiler only. */
export interface JobReference {
  readonly type: string;
  readonly types?: { readonly input: unknown; readonly result: unknown };
}

export type InputOf<J extends JobReference> = NonNullable<J['types']>['input'];
export type ResultOf<J extends JobReference> = NonNullable<J['types']>['result'];

/** A job's id, or anything that has it: a handle, a job, an entry of a list. */
export type JobId = string | { readonly id: string };

export function idOf(job: JobId): string {
  const id = typeof job === 'string' ? job : job.id;
  if (typeof id !== 'string' || id === '')
    throw new TypeError('a job is named by its id, or by an object that has one');
  return id;
}
