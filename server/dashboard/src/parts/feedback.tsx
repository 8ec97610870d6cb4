// The empty, loading and error states of a page.
import type { ComponentChildren } from 'preact';
import type { ApiError } from '../data/api.ts';
import type { Query } from '../data/query.ts';
import { Icon, type IconName } from './icons.tsx';

export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} size={28} />
      <h2>{title}</h2>
      {children && <div class="empty-text">{children}</div>}
    </div>
  );
}

export function ErrorNote({ error, retry }: { error: ApiError; retry?: () => void }) {
  const requestId = error.problem.request_id;
  return (
    <div class="note note-fail" role="alert">
      <strong>{titleOf(error)}</strong>
      <p>{error.message}</p>
      {typeof requestId === 'string' && <p class="muted small">Request {requestId}</p>}
      {retry && (
        <button type="button" class="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

function titleOf(error: ApiError): string {
  if (error.status === 0) return 'No answer';
  if (error.status === 403) return 'Not allowed';
  if (error.status === 404) return 'Not found';
  if (error.status >= 500) return 'The daemon could not answer';
  return typeof error.problem.title === 'string' ? error.problem.title : 'Refused';
}

export function Waiting({ rows = 4 }: { rows?: number }) {
  return (
    <div class="waiting" role="status" aria-busy="true" aria-label="Loading">
      {Array.from({ length: rows }, (_, n) => (
        <span key={n} />
      ))}
    </div>
  );
}

/** The usual three states of a query. Earlier results stay on the screen when a later read fails. */
export function Loaded<T>({
  query,
  children,
  rows,
}: {
  query: Query<T>;
  children: (data: T) => ComponentChildren;
  rows?: number;
}) {
  const { data, error, refresh } = query;
  if (data === undefined)
    return error ? <ErrorNote error={error} retry={refresh} /> : <Waiting {...(rows && { rows })} />;
  return (
    <>
      {error && <ErrorNote error={error} retry={refresh} />}
      {children(data)}
    </>
  );
}
