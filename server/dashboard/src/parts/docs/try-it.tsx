// A form that sends one operation with the session of the page, and shows the answer.
import { useState } from 'preact/hooks';
import { apiHeaders, base } from '../../data/api.ts';
import { type ApiDocument, type Entry, jsonContent, type Parameter, sampleOf } from '../../data/api-document.ts';
import { isReadOnly } from '../../data/session.ts';
import { Copy } from '../copy.tsx';
import { Field } from '../dialog.tsx';
import { Document } from '../json-tree.tsx';
import { span } from '../time.tsx';

interface Answer {
  status: number;
  tookMs: number;
  body: unknown;
}

const maxShownText = 20_000;

export function TryIt({ document, entry }: { document: ApiDocument; entry: Entry }) {
  const { method, operation } = entry;
  const [answer, setAnswer] = useState<Answer | string>();
  const [busy, setBusy] = useState(false);
  const parameters = (operation.parameters ?? []).filter((each) => each.in !== 'header');
  const content = jsonContent(operation.requestBody);
  const example = content && JSON.stringify(content.example ?? sampleOf(document, content.schema), null, 2);
  if (isReadOnly && method !== 'GET') return <p class="muted small">This dashboard is mounted read-only.</p>;
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const request = requestOf(entry, form);
    if (typeof request === 'string') return setAnswer(request);
    setBusy(true);
    setAnswer(await send(request));
    setBusy(false);
  };
  return (
    <form class="try-it" onSubmit={submit}>
      <h3>Try it</h3>
      {parameters.map((each) => (
        <Field key={each.name} label={`${each.name}${each.required ? ' (required)' : ''}`}>
          <input name={`p.${each.name}`} required={each.required ?? false} autocomplete="off" spellcheck={false} />
        </Field>
      ))}
      {example !== undefined && (
        <Field label="Body">
          <textarea name="body" class="mono" rows={Math.min(14, example.split('\n').length + 1)} spellcheck={false}>
            {example}
          </textarea>
        </Field>
      )}
      <div class="actions">
        <button
          type="submit"
          class={method === 'DELETE' ? 'button button-danger' : 'button button-main'}
          disabled={busy}
        >
          Send {method}
        </button>
        <Copy text={curlOf(entry, example)} label="Copy a curl line for this request">
          Copy as curl
        </Copy>
      </div>
      <div aria-live="polite">
        {typeof answer === 'string' && <p class="field-error">{answer}</p>}
        {answer !== undefined && typeof answer !== 'string' && <AnswerView answer={answer} />}
      </div>
    </form>
  );
}

function AnswerView({ answer: { status, tookMs, body } }: { answer: Answer }) {
  return (
    <div class="answer">
      <p>
        <strong class={status < 400 ? 'tone-done' : 'tone-fail'}>{status}</strong>{' '}
        <span class="muted small">after {span(tookMs)}</span>
      </p>
      {typeof body === 'string' ? <pre>{body}</pre> : <Document label="Answer" value={body} />}
    </div>
  );
}

interface Request {
  method: string;
  url: string;
  path: string;
  body: string | undefined;
}

/** Returns a text instead of a request if the form has an error. */
function requestOf({ method, path, operation }: Entry, form: FormData): Request | string {
  const value = (each: Parameter) => String(form.get(`p.${each.name}`) ?? '').trim();
  let filled = path;
  const query = new URLSearchParams();
  for (const each of operation.parameters ?? []) {
    if (each.in === 'path') filled = filled.replace(`{${each.name}}`, encodeURIComponent(value(each)));
    if (each.in === 'query' && value(each) !== '') query.set(each.name, value(each));
  }
  const text = form.has('body') ? String(form.get('body')).trim() : '';
  try {
    if (text !== '') JSON.parse(text);
  } catch (error) {
    return `The body is not JSON: ${(error as Error).message}`;
  }
  const search = query.size === 0 ? '' : `?${query}`;
  return { method, path: filled, url: `${base}${filled.slice(1)}${search}`, body: text === '' ? undefined : text };
}

async function send({ method, url, path, body }: Request): Promise<Answer | string> {
  const startedAt = performance.now();
  try {
    const response = await fetch(url, {
      method,
      headers: {
        ...apiHeaders(path.replace(/^\/api/, '')),
        ...(body !== undefined && { 'Content-Type': 'application/json' }),
      },
      credentials: 'same-origin',
      ...(body !== undefined && { body }),
    });
    if (response.headers.get('content-type')?.startsWith('text/event-stream')) {
      await response.body?.cancel();
      return {
        status: response.status,
        tookMs: performance.now() - startedAt,
        body: 'A stream: the events page shows it.',
      };
    }
    const text = await response.text();
    return { status: response.status, tookMs: performance.now() - startedAt, body: parsed(text) };
  } catch (error) {
    return (error as Error).message;
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text.slice(0, maxShownText);
  }
}

function curlOf({ method, path }: Entry, body: string | undefined): string {
  const data = body === undefined ? '' : ` -H 'Content-Type: application/json' -d '${body.replaceAll("'", "'\\''")}'`;
  return `curl -X ${method} '${location.origin}${base}${path.slice(1)}' -H "Authorization: Bearer $KEY"${data}`;
}
