// The command palette (Ctrl or ⌘ K, or /) and the list of keys (?).
import { useEffect, useRef, useState } from 'preact/hooks';
import { api, enc, queryOf } from '../../data/api.ts';
import { navigate } from '../../data/router.ts';
import { Store, useStore } from '../../data/store.ts';
import { chooseTheme, theme } from '../../data/theme.ts';
import type { Lane } from '../../data/types.ts';
import { Dialog } from '../dialog.tsx';
import { Icon, type IconName } from '../icons.tsx';
import { entries } from './nav-entries.ts';

const open = new Store<'closed' | 'palette' | 'keys'>('closed');

export function openPalette(): void {
  open.set('palette');
}

const goKeys: Record<string, string> = {
  o: '/',
  t: '/targets',
  j: '/jobs',
  w: '/workers',
  s: '/schedules',
  h: '/webhooks',
  e: '/events',
  c: '/capacity',
};

export function Palette() {
  const shown = useStore(open);
  useEffect(() => {
    let goes = false;
    const onKey = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault();
        open.set('palette');
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)) return;
      if (goes && goKeys[event.key] !== undefined) {
        goes = false;
        event.preventDefault();
        return navigate(goKeys[event.key] as string);
      }
      goes = event.key === 'g';
      if (event.key === '/') {
        event.preventDefault();
        open.set('palette');
      } else if (event.key === '?') open.set('keys');
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  if (shown === 'palette') return <Commands onClose={() => open.set('closed')} />;
  if (shown === 'keys') return <Keys onClose={() => open.set('closed')} />;
  return null;
}

function isTyping(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return (
    element !== null &&
    (/^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName ?? '') || document.querySelector('dialog[open]') !== null)
  );
}

interface Command {
  label: string;
  hint?: string;
  icon: IconName;
  run: () => void;
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

function Commands({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState('');
  const [chosen, setChosen] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const targets = useTargets(text.trim());
  const commands = commandsFor(text.trim(), targets);
  const at = Math.min(chosen, commands.length - 1);
  const run = (command: Command | undefined) => {
    if (!command) return;
    onClose();
    command.run();
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown') setChosen(Math.min(at + 1, commands.length - 1));
    else if (event.key === 'ArrowUp') setChosen(Math.max(at - 1, 0));
    else if (event.key === 'Enter') run(commands[at]);
    else return;
    event.preventDefault();
  };
  useEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' });
  }, [at]);
  return (
    <Dialog title="Search or jump to" onClose={onClose}>
      <input
        class="palette-input"
        placeholder="A page, a job id, a target, a job type"
        aria-label="Search or jump to"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={commands.length > 0 ? `palette-${at}` : undefined}
        value={text}
        onInput={(event) => {
          setText((event.target as HTMLInputElement).value);
          setChosen(0);
        }}
        onKeyDown={onKey}
        autoFocus
      />
      <div class="palette-list" id="palette-list" role="listbox" aria-label="Results" ref={list}>
        {commands.map((command, n) => (
          <div
            key={command.label}
            id={`palette-${n}`}
            role="option"
            aria-selected={n === at}
            onClick={() => run(command)}
            onMouseMove={() => setChosen(n)}
          >
            <Icon name={command.icon} />
            <span>{command.label}</span>
            {command.hint && <span class="muted small">{command.hint}</span>}
          </div>
        ))}
      </div>
    </Dialog>
  );
}

/** Targets whose id contains the text, asked for when the typing pauses. */
function useTargets(text: string): string[] {
  const [found, setFound] = useState<string[]>([]);
  useEffect(() => {
    if (text.length < 2 || uuid.test(text)) {
      setFound([]);
      return;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => {
      api<{ lanes: Lane[] }>(`/lanes${queryOf({ search: text, limit: 6 })}`, { signal: abort.signal }).then(
        ({ lanes }) => setFound(lanes.map((lane) => lane.id)),
        () => {},
      );
    }, 200);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  return found;
}

function commandsFor(text: string, targets: readonly string[]): Command[] {
  const go = (label: string, icon: IconName, to: string, hint?: string): Command => ({
    label,
    icon,
    run: () => navigate(to),
    ...(hint !== undefined && { hint }),
  });
  const all = [
    ...entries.filter((entry) => entry.shown?.() ?? true).map((entry) => go(entry.label, entry.icon, entry.to, 'Page')),
    go('Jobs that wait for a person', 'pause', '/jobs?held=true', 'Filter'),
    go('Failed jobs', 'cancel', '/jobs?status=ERROR', 'Filter'),
    go('Running jobs', 'resume', '/jobs?status=RUNNING', 'Filter'),
    go('Held targets', 'targets', '/targets?show=held', 'Filter'),
    { label: 'Switch theme', icon: 'auto' as const, run: () => chooseTheme(theme.value === 'dark' ? 'light' : 'dark') },
    { label: 'Keyboard shortcuts', icon: 'question' as const, run: () => open.set('keys') },
  ];
  if (text === '') return all;
  if (uuid.test(text)) return [go(`Job ${text}`, 'jobs', `/jobs/${text.toLowerCase()}`)];
  const wanted = text.toLowerCase();
  return [
    ...all.filter((command) => command.label.toLowerCase().includes(wanted)),
    ...targets.map((id) => go(id, 'targets', `/targets/${enc(id)}`, 'Target')),
    go(`Jobs of type ${text}`, 'jobs', `/jobs${queryOf({ type: text })}`, 'Filter'),
  ];
}

const keys: [string, string][] = [
  ['⌘ K, Ctrl K or /', 'Search or jump to'],
  ['g then o, t, j', 'Overview, targets, jobs'],
  ['g then w, s, h, e, c', 'Workers, schedules, webhooks, events, capacity'],
  ['j and k', 'Next and previous row of a list'],
  ['x', 'Select the row'],
  ['Enter', 'Open the row'],
  ['Esc', 'Close a dialog'],
  ['?', 'This list'],
];

function Keys({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="keys">
        {keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
