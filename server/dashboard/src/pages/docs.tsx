// The API explorer: every operation of the daemon that serves this page, from its own description.
import { useEffect, useState } from 'preact/hooks';
import { base } from '../data/api.ts';
import { type ApiDocument, type Entry, entriesOf } from '../data/api-document.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { OperationView } from '../parts/docs/operation.tsx';
import { Empty, Waiting } from '../parts/feedback.tsx';

export default function DocsPage() {
  useTitle('API');
  const [document, setDocument] = useState<ApiDocument | 'failed'>();
  const [text, setText] = useState('');
  useEffect(() => {
    fetch(`${base}openapi.json`)
      .then((response) => (response.ok ? response.json() : Promise.reject(new Error(String(response.status)))))
      .then(setDocument, () => setDocument('failed'));
  }, []);
  useEffect(() => {
    if (document === undefined || location.hash.length < 2) return;
    window.document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }, [document]);
  if (document === 'failed') return <Empty icon="search" title="The description of the API cannot be read" />;
  if (document === undefined) return <Waiting rows={8} />;
  const entries = entriesOf(document).filter((entry) => matches(entry, text.toLowerCase()));
  return (
    <>
      <header class="page-head">
        <div>
          <h1>API</h1>
          <p class="muted small">
            Version {document.info.version}. <a href={`${base}openapi.json`}>openapi.json</a> has the same for programs.
          </p>
        </div>
      </header>
      <div class="filters">
        <label class="search-field">
          <span class="visually-hidden">Part of a path, a name or a summary</span>
          <input
            type="search"
            placeholder="Part of a path, a name or a summary"
            value={text}
            onInput={(event) => setText((event.target as HTMLInputElement).value)}
          />
        </label>
      </div>
      {entries.length === 0 && <Empty icon="search" title="No operation matches" />}
      {document.tags.map((tag) => (
        <Group
          key={tag.name}
          document={document}
          tag={tag}
          entries={entries.filter((entry) => entry.operation.tags.includes(tag.name))}
        />
      ))}
    </>
  );
}

interface GroupProps {
  document: ApiDocument;
  tag: ApiDocument['tags'][number];
  entries: Entry[];
}

function Group({ document, tag, entries }: GroupProps) {
  if (entries.length === 0) return null;
  return (
    <section aria-label={tag.name} class="docs-group">
      <h2 class="section-title">{tag.name}</h2>
      <p class="muted small">{tag.description}</p>
      <div class="operations">
        {entries.map((entry) => (
          <OperationView key={entry.operation.operationId} document={document} entry={entry} />
        ))}
      </div>
    </section>
  );
}

function matches({ method, path, operation }: Entry, text: string): boolean {
  const words = `${method} ${path} ${operation.operationId} ${operation.summary}`.toLowerCase();
  return text.split(/\s+/).every((part) => words.includes(part));
}
