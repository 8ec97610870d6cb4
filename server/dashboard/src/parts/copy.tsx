// A button that copies a text, such as an id or a curl line, and confirms it.
import { useState } from 'preact/hooks';
import { Icon } from './icons.tsx';

export function Copy({ text, label, children }: { text: string; label: string; children?: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyBySelection(text);
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button
      type="button"
      class={children ? 'button' : 'icon-button'}
      aria-label={children ? undefined : label}
      title={label}
      onClick={copy}
    >
      <Icon name={copied ? 'resolve' : 'copy'} size={14} />
      {children && <span>{copied ? 'Copied' : children}</span>}
      {!children && copied && <span class="visually-hidden">Copied</span>}
    </button>
  );
}

/** Without TLS browsers offer no clipboard. */
function copyBySelection(text: string): void {
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'visually-hidden';
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}
