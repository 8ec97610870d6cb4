// A dialog, based on the browser's own, which handles focus, Escape and the backdrop.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { Icon } from './icons.tsx';

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
}

export function Dialog({ title, onClose, children, wide = false }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement as HTMLElement | null;
    dialog?.showModal();
    return () => {
      dialog?.close();
      before?.focus?.();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? 'dialog dialog-wide' : 'dialog'}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === element.current) onClose();
      }}
    >
      <div class="dialog-body">
        <header class="dialog-head">
          <h2>{title}</h2>
          <button type="button" class="icon-button" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is the child.
    <label class="field">
      <span class="field-label">{label}</span>
      {children}
      {hint && <span class="field-hint">{hint}</span>}
    </label>
  );
}

interface DialogFootProps {
  /** The error of the last try. */
  error: string | undefined;
  onClose: () => void;
  danger?: boolean | undefined;
  busy?: boolean;
  children: ComponentChildren;
}

/** The end of a dialog's form: its error, and the buttons to cancel and to submit. */
export function DialogFoot({ error, onClose, danger = false, busy = false, children }: DialogFootProps) {
  return (
    <>
      {error && (
        <p class="field-error" role="alert">
          {error}
        </p>
      )}
      <footer class="dialog-foot">
        <button type="button" class="button" onClick={onClose}>
          Back
        </button>
        <button type="submit" class={danger ? 'button button-danger' : 'button button-main'} disabled={busy}>
          {children}
        </button>
      </footer>
    </>
  );
}
