// Finds what is stored for the path of a request, in a time that does not grow with the number of paths. Literal segments
// come before parameters: `/jobs/bulk` is not read as a job's id.

interface Node<T> {
  literals: Map<string, Node<T>>;
  parameter: Node<T> | undefined;
  entry: { value: T; names: string[] } | undefined;
}

export interface Match<T> {
  value: T;
  /** Decoded. */
  params: Record<string, string>;
}

export class PathTable<T> {
  readonly #root: Node<T> = createNode();

  /** `/api/jobs/{job_id}`. */
  add(path: string, value: T): void {
    let node = this.#root;
    const names: string[] = [];
    for (const segment of segmentsOf(path)) {
      if (segment.startsWith('{')) {
        names.push(segment.slice(1, -1));
        node.parameter ??= createNode();
        node = node.parameter;
      } else {
        const next = node.literals.get(segment) ?? createNode<T>();
        node.literals.set(segment, next);
        node = next;
      }
    }
    node.entry = { value, names };
  }

  /** A trailing slash is tolerated. Throws a URIError for a parameter that cannot be decoded. */
  find(path: string): Match<T> | undefined {
    const segments = segmentsOf(path.length > 1 && path.endsWith('/') ? path.slice(0, -1) : path);
    const given: string[] = [];
    const entry = find(this.#root, segments, 0, given);
    if (entry === undefined) return undefined;
    const params: Record<string, string> = {};
    entry.names.forEach((name, n) => {
      params[name] = decodeURIComponent(given[n] as string);
    });
    return { value: entry.value, params };
  }
}

function find<T>(node: Node<T>, segments: string[], at: number, given: string[]): Node<T>['entry'] {
  const segment = segments[at];
  if (segment === undefined) return node.entry;
  const literal = node.literals.get(segment);
  const found = literal && find(literal, segments, at + 1, given);
  if (found !== undefined || node.parameter === undefined || segment === '') return found;
  given.push(segment);
  const below = find(node.parameter, segments, at + 1, given);
  if (below === undefined) given.pop();
  return below;
}

function segmentsOf(path: string): string[] {
  return path.slice(1).split('/');
}

function createNode<T>(): Node<T> {
  return { literals: new Map(), parameter: undefined, entry: undefined };
}
