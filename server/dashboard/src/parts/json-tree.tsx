// A document as a tree that folds. Large lists and texts are cut, and opened on demand.
import { useState } from 'preact/hooks';
import { Copy } from './copy.tsx';

const shownItems = 100;
const shownChars = 2000;

export function Document({ label, value, note }: { label: string; value: unknown; note?: string }) {
  const isEmpty =
    value === null || value === undefined || (typeof value === 'object' && Object.keys(value).length === 0);
  return (
    <section class="document" aria-label={label}>
      <header>
        <h3>{label}</h3>
        {!isEmpty && <Copy text={JSON.stringify(value, null, 2)} label={`Copy ${label.toLowerCase()} as JSON`} />}
      </header>
      {isEmpty ? (
        <p class="muted small">{note ?? 'None'}</p>
      ) : (
        <div class="tree">
          <Node value={value} open={true} />
        </div>
      )}
    </section>
  );
}

interface NodeProps {
  name?: string | undefined;
  value: unknown;
  open?: boolean;
}

function Node({ name, value, open = false }: NodeProps) {
  if (value === null || typeof value !== 'object') return <Leaf name={name} value={value} />;
  return <Branch name={name} value={value as Record<string, unknown>} open={open} />;
}

function Leaf({ name, value }: { name: string | undefined; value: unknown }) {
  const [whole, setWhole] = useState(false);
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  const cut = !whole && text.length > shownChars;
  return (
    <div class="tree-row">
      {name !== undefined && <span class="tree-name">{name}: </span>}
      <span class={`tree-${value === null ? 'null' : typeof value}`}>
        {cut ? `${text.slice(0, shownChars)}…` : text}
      </span>
      {cut && (
        <button type="button" class="link" onClick={() => setWhole(true)}>
          show all {text.length.toLocaleString('en-US')} characters
        </button>
      )}
    </div>
  );
}

function Branch({
  name,
  value,
  open: openAtFirst,
}: {
  name: string | undefined;
  value: Record<string, unknown>;
  open: boolean;
}) {
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  const [open, setOpen] = useState(openAtFirst || entries.length <= 3);
  const [shown, setShown] = useState(shownItems);
  const size = isList ? `[${entries.length}]` : `{${entries.length}}`;
  return (
    <div class="tree-branch">
      <button type="button" class="tree-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class="tree-arrow" aria-hidden="true" />
        {name !== undefined && <span class="tree-name">{name} </span>}
        <span class="muted">{size}</span>
      </button>
      {open && (
        <div class="tree-children">
          {entries.slice(0, shown).map(([key, child]) => (
            <Node key={key} name={key} value={child} />
          ))}
          {entries.length > shown && (
            <button type="button" class="link" onClick={() => setShown(shown + 1000)}>
              {entries.length - shown} more
            </button>
          )}
        </div>
      )}
    </div>
  );
}
