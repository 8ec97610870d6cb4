// Explores every state that a model can reach, breadth first, and returns the shortest path to a violation.

export interface Model<S> {
  initial: S;
  /** Every step that may be taken next. A step must not change the state that it is given. */
  steps(state: S): Iterable<readonly [label: string, next: S]>;
  /** Describes the violation in the state; undefined if there is none. */
  violation(state: S): string | undefined;
  /** Two states with one key are the same state. */
  key(state: S): string;
}

export interface Exploration {
  states: number;
  steps: number;
  /** False if the limit was reached first: then nothing is proved. */
  complete: boolean;
  violation: { what: string; path: string[] } | undefined;
}

export function explore<S>(model: Model<S>, maxStates: number): Exploration {
  const parents = new Map<string, readonly [parent: string, label: string] | undefined>();
  const initialKey = model.key(model.initial);
  parents.set(initialKey, undefined);
  let frontier: [string, S][] = [[initialKey, model.initial]];
  let steps = 0;
  const pathTo = (key: string): string[] => {
    const labels: string[] = [];
    for (let at = parents.get(key); at !== undefined; at = parents.get(at[0])) labels.push(at[1]);
    return labels.reverse();
  };
  while (frontier.length > 0) {
    const next: [string, S][] = [];
    for (const [key, state] of frontier) {
      const what = model.violation(state);
      if (what !== undefined) {
        return { states: parents.size, steps, complete: true, violation: { what, path: pathTo(key) } };
      }
      for (const [label, successor] of model.steps(state)) {
        steps += 1;
        const successorKey = model.key(successor);
        if (parents.has(successorKey)) continue;
        if (parents.size >= maxStates) return { states: parents.size, steps, complete: false, violation: undefined };
        parents.set(successorKey, [key, label]);
        next.push([successorKey, successor]);
      }
    }
    frontier = next;
  }
  return { states: parents.size, steps, complete: true, violation: undefined };
}
