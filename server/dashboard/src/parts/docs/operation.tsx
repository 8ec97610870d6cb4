// One operation of the API: its input, its answers, and a form that sends it.
import { useState } from 'preact/hooks';
import {
  type ApiDocument,
  type Entry,
  jsonContent,
  type Parameter,
  resolve,
  type Schema,
  typeText,
} from '../../data/api-document.ts';
import { hrefOf } from '../../data/router.ts';
import { session } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { Copy } from '../copy.tsx';
import { Document } from '../json-tree.tsx';
import { TryIt } from './try-it.tsx';

export function OperationView({ document, entry }: { document: ApiDocument; entry: Entry }) {
  const { method, path, operation } = entry;
  const id = operation.operationId;
  const [open, setOpen] = useState(location.hash === `#${id}`);
  return (
    <details
      class="operation-doc"
      id={id}
      open={open}
      onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}
    >
      <summary>
        <span class={`verb verb-${method.toLowerCase()}`}>{method}</span>
        <code class="operation-path">{path}</code>
        <span class="operation-summary">{operation.summary}</span>
      </summary>
      {open && <Body document={document} entry={entry} />}
    </details>
  );
}

function Body({ document, entry }: { document: ApiDocument; entry: Entry }) {
  const now = useStore(session);
  const { operation } = entry;
  const body = jsonContent(operation.requestBody);
  return (
    <div class="operation-body">
      <p class="small">
        <code>{operation.operationId}</code> <Access access={operation['x-access']} />{' '}
        <Copy
          text={`${location.origin}${hrefOf('/docs')}#${operation.operationId}`}
          label={`Copy a link to ${operation.operationId}`}
        />
      </p>
      {operation.description && <p>{withCode(operation.description)}</p>}
      <Parameters document={document} parameters={operation.parameters ?? []} />
      {body && (
        <>
          <h3>Body</h3>
          <Fields document={document} schema={body.schema} />
          {body.example !== undefined && <Document label="Example request" value={body.example} />}
        </>
      )}
      <Answers document={document} entry={entry} />
      {typeof now === 'string' ? (
        <p class="muted small">Sign in to send requests from here.</p>
      ) : (
        <TryIt document={document} entry={entry} />
      )}
    </div>
  );
}

function Access({ access }: { access: string | string[] | undefined }) {
  if (access === undefined) return <span class="chip">public</span>;
  if (access === 'operator') return <span class="chip">operator's key</span>;
  return <span class="chip">scope {Array.isArray(access) ? access.join(' or ') : access}</span>;
}

function Parameters({ document, parameters }: { document: ApiDocument; parameters: Parameter[] }) {
  if (parameters.length === 0) return null;
  return (
    <>
      <h3>Parameters</h3>
      <dl class="fields">
        {parameters.map((each) => (
          <Field
            key={each.name}
            name={each.name}
            type={`${each.in}, ${typeText(document, each.schema)}`}
            required={each.required ?? false}
            text={each.description ?? each.schema?.description}
          />
        ))}
      </dl>
    </>
  );
}

function Fields({ document, schema: given }: { document: ApiDocument; schema: Schema | undefined }) {
  const { schema } = resolve(document, given);
  const properties = Object.entries(schema.properties ?? {});
  if (properties.length === 0) return <p class="muted small">{typeText(document, given)}</p>;
  return (
    <dl class="fields">
      {properties.map(([name, each]) => (
        <Field
          key={name}
          name={name}
          type={typeText(document, each)}
          required={schema.required?.includes(name) ?? false}
          text={each.description}
        />
      ))}
    </dl>
  );
}

/** Descriptions are Markdown, of which they use `code` only. */
function withCode(text: string) {
  return text.split('`').map((part, n) => (n % 2 === 1 ? <code key={`${n}${part}`}>{part}</code> : part));
}

interface FieldProps {
  name: string;
  type: string;
  required: boolean;
  text: string | undefined;
}

function Field({ name, type, required, text }: FieldProps) {
  return (
    <div>
      <dt>
        <code>{name}</code>
        {required && <span class="chip">required</span>}
      </dt>
      <dd>
        <span class="muted small">{type}</span>
        {text && <span class="small"> {withCode(text)}</span>}
      </dd>
    </div>
  );
}

function Answers({ document, entry }: { document: ApiDocument; entry: Entry }) {
  const answers = Object.entries(entry.operation.responses);
  return (
    <>
      <h3>Answers</h3>
      <dl class="fields">
        {answers.map(([status, answer]) => {
          const content = jsonContent(answer);
          return (
            <div key={status}>
              <dt>
                <code>{status}</code>
              </dt>
              <dd>
                <span class="muted small">
                  {content ? typeText(document, content.schema) : Object.keys(answer.content ?? {}).join(', ')}
                </span>
                {status >= '400' && <span class="small"> {answer.description}</span>}
                {content?.example !== undefined && (
                  <Document label={`Example answer ${status}`} value={content.example} />
                )}
              </dd>
            </div>
          );
        })}
      </dl>
    </>
  );
}
