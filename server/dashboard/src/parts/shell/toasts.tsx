// Short messages about completed actions, some with an undo.
import { Store, useStore } from '../../data/store.ts';
import { Icon } from '../icons.tsx';

interface Toast {
  id: number;
  text: string;
  tone: 'done' | 'fail';
  undo?: (() => void) | undefined;
}

const toasts = new Store<readonly Toast[]>([]);
let lastId = 0;
// Long enough to read and to reach for "Undo".
const shownMs = 8000;

export function toast(text: string, options: { tone?: 'done' | 'fail'; undo?: () => void } = {}): void {
  const id = ++lastId;
  toasts.set([...toasts.value.slice(-3), { id, text, tone: options.tone ?? 'done', undo: options.undo }]);
  setTimeout(() => dismiss(id), shownMs);
}

function dismiss(id: number): void {
  toasts.set(toasts.value.filter((each) => each.id !== id));
}

export function Toasts() {
  const shown = useStore(toasts);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.map(({ id, text, tone, undo }) => (
        <div key={id} class={`toast toast-${tone}`}>
          <span>{text}</span>
          {undo && (
            <button
              type="button"
              class="button button-quiet"
              onClick={() => {
                dismiss(id);
                undo();
              }}
            >
              Undo
            </button>
          )}
          <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => dismiss(id)}>
            <Icon name="close" size={14} />
          </button>
        </div>
      ))}
    </div>
  );
}
