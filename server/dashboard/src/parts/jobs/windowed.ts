// Renders only the visible rows of a list of any length.
import type { RefObject } from 'preact';
import { useEffect, useState } from 'preact/hooks';

const spareRows = 12;

export interface RowWindow {
  first: number;
  last: number;
}

export function useRowWindow(list: RefObject<HTMLElement | null>, count: number, rowPx: number): RowWindow {
  const [range, setRange] = useState<RowWindow>({ first: 0, last: 60 });
  useEffect(() => {
    const measure = () => {
      const top = list.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / rowPx) - spareRows);
      const last = first + Math.ceil(innerHeight / rowPx) + 2 * spareRows;
      setRange((before) => (before.first === first && before.last === last ? before : { first, last }));
    };
    measure();
    addEventListener('scroll', measure, { passive: true });
    addEventListener('resize', measure);
    return () => {
      removeEventListener('scroll', measure);
      removeEventListener('resize', measure);
    };
  }, [rowPx, count]);
  return { first: Math.min(range.first, count), last: Math.min(range.last, count) };
}

/** True below the width at which tables become cards. */
export function useNarrow(): boolean {
  const query = '(max-width: 760px)';
  const [narrow, setNarrow] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const change = () => setNarrow(list.matches);
    list.addEventListener('change', change);
    return () => list.removeEventListener('change', change);
  }, []);
  return narrow;
}
