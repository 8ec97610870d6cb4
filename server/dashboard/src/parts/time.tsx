// Relative times with the exact time on hover. They share one clock.
import { useEffect, useState } from 'preact/hooks';

const ticks = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

/** Redraws once a second while a time is shown and the page is visible. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const tick = () => setNow(Date.now());
    ticks.add(tick);
    timer ??= setInterval(() => {
      if (!document.hidden) for (const each of [...ticks]) each();
    }, 1000);
    return () => {
      ticks.delete(tick);
      if (ticks.size === 0) {
        clearInterval(timer);
        timer = undefined;
      }
    };
  }, []);
  return now;
}

export function Ago({ at, prefix = '' }: { at: string | null | undefined; prefix?: string }) {
  const now = useNow();
  if (!at) return <span class="muted">–</span>;
  const ms = now - Date.parse(at);
  // Clocks differ by a second or two.
  const text = Math.abs(ms) < 2000 ? 'just now' : ms > 0 ? `${span(ms)} ago` : `in ${span(-ms)}`;
  return (
    <time dateTime={at} title={exact(at)}>
      {prefix}
      {text}
    </time>
  );
}

/** The time since, without "ago". */
export function Since({ at }: { at: string | null | undefined }) {
  const now = useNow();
  if (!at) return null;
  return (
    <time dateTime={at} title={exact(at)}>
      {span(Math.max(0, now - Date.parse(at)))}
    </time>
  );
}

/** Short enough for a sentence: `Nov 24, 14:05`. */
function At({ at }: { at: string }) {
  const text = new Date(at).toLocaleString(undefined, {
    month: 'short',
    day: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
    hour12: false,
  });
  return (
    <time dateTime={at} title={exact(at)}>
      {text}
    </time>
  );
}

/**
 * A sentence of the API with relative times, such as `5 min ago`, or `for 5 min` instead of `since` a time. A time after
 * `until`, `at`, `before` or `by` keeps its date: `until Nov 24, 14:05`.
 */
export function Sentence({ text }: { text: string }) {
  const parts = text.split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/);
  return (
    <>
      {parts.map((part, n) => {
        if (n % 2 === 0) return n + 1 < parts.length ? part.replace(/\bsince $/, 'for ') : part;
        const before = parts[n - 1] ?? '';
        if (/\bsince $/.test(before)) return <Since key={`${n}${part}`} at={part} />;
        const Time = /\b(until|at|before|by)\s$/.test(before) ? At : Ago;
        return <Time key={`${n}${part}`} at={part} />;
      })}
    </>
  );
}

export function exact(at: string): string {
  const date = new Date(at);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return `${date.toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' })} ${zone} · ${at}`;
}

export function clock(at: string): string {
  return new Date(at).toLocaleTimeString(undefined, { hour12: false });
}

/** `4 s`, `12 min`, `3 h 20 min`, `5 d`. */
export function span(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 0.9995) return `${Math.round(ms)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, '')} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 === 0 || hours > 9 ? `${hours} h` : `${hours} h ${minutes % 60} min`;
  const days = Math.floor(hours / 24);
  return hours % 24 === 0 || days > 2 ? `${days} d` : `${days} d ${hours % 24} h`;
}

export function number(value: number): string {
  return value.toLocaleString('en-US');
}

/** 1,234 up to ten thousand, then 12.3k. */
export function compact(value: number): string {
  if (value < 10_000) return number(Math.round(value * 100) / 100);
  return Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 }).format(value);
}
