// The number of holds and open questions, in the title and the favicon, also while the page is hidden.
import { useEffect } from 'preact/hooks';
import iconUrl from '../../icon.svg';
import { api } from '../api.ts';
import { live } from '../live.ts';
import { Store, useStore } from '../store.ts';
import type { LiveEvent } from '../types.ts';

interface AttentionCount {
  paused: number;
  error: number;
  questions: number;
  questions_of_holds: number;
}

/** Holds and open questions; undefined until they were counted. */
export const attentionTotal = new Store<number | undefined>(undefined);
export const openQuestions = new Store(0);

// Only the title of a hidden tab is visible, so a slower poll is enough.
const gapMs = { seen: 3000, hidden: 30_000 };

export function useHoldCount(active: boolean): void {
  useEffect(() => {
    if (!active) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let stopped = false;
    let lastAt = 0;
    const read = async () => {
      lastAt = performance.now();
      try {
        const { paused, error, questions, questions_of_holds: ofHolds } = await api<AttentionCount>('/attention/count');
        if (stopped) return;
        attentionTotal.set(paused + error + questions - ofHolds);
        openQuestions.set(questions);
      } catch {
        // The page itself shows the error.
      }
    };
    const soon = () => {
      if (timer !== undefined) return;
      const gap = document.hidden ? gapMs.hidden : gapMs.seen;
      timer = setTimeout(
        () => {
          timer = undefined;
          void read();
        },
        Math.max(300, lastAt + gap - performance.now()),
      );
    };
    void read();
    const unsubscribe = live.subscribe((event) => {
      if (event === 'reset' || changesCount(event)) soon();
    });
    return () => {
      stopped = true;
      clearTimeout(timer);
      unsubscribe();
    };
  }, [active]);
}

function changesCount({ type, from, to }: LiveEvent): boolean {
  return isHold(from) || isHold(to) || type.startsWith('question.');
}

function isHold(status: string | null): boolean {
  return status === 'PAUSED' || status === 'ERROR';
}

export function useTitle(page: string): void {
  const count = useStore(attentionTotal);
  useEffect(() => {
    document.title = `${count ? `(${count}) ` : ''}${page} · Leasehold`;
    drawIcon(count ?? 0);
  }, [page, count]);
}

let drawn: number | undefined;

function drawIcon(count: number): void {
  if (drawn === count) return;
  drawn = count;
  const link = document.getElementById('icon') as HTMLLinkElement | null;
  if (!link) return;
  if (count === 0) {
    link.href = iconUrl;
    return;
  }
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 32;
  const pen = canvas.getContext('2d');
  if (!pen) return;
  pen.fillStyle = '#b45309';
  pen.beginPath();
  pen.roundRect(0, 0, 32, 32, 8);
  pen.fill();
  pen.fillStyle = '#fff';
  pen.font = `bold ${count > 99 ? 14 : 19}px system-ui, sans-serif`;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(count > 99 ? '99+' : String(count), 16, 17);
  link.href = canvas.toDataURL();
}
