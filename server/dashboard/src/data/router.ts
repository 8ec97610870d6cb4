// Addresses: every view has one, including its filters.
import { base } from './api.ts';
import { Store, useStore } from './store.ts';

export interface Place {
  /** Without the prefix under which the dashboard is mounted: `/jobs/…`. */
  path: string;
  search: URLSearchParams;
}

const place = new Store<Place>(readPlace());

export function useClickNavigation(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const link = (event.target as Element).closest?.('a');
  if (link?.target !== '' || link.origin !== location.origin || link.hasAttribute('download')) return;
  // An anchor on this page.
  if (link.hash !== '' && link.pathname === location.pathname && link.search === location.search) return;
  if (!link.pathname.startsWith(base) || isNotPage(link.pathname)) return;
  event.preventDefault();
  navigate(link.pathname.slice(base.length - 1) + link.search);
}

/** Paths that the daemon serves besides the page. */
function isNotPage(path: string): boolean {
  return /^(api|assets|openapi\.json|metrics|livez|readyz)(\/|$)/.test(path.slice(base.length));
}

export function navigate(to: string, options: { replace?: boolean } = {}): void {
  const address = hrefOf(to);
  if (address === location.pathname + location.search) return;
  const changesPage = address.split('?')[0] !== location.pathname;
  history[options.replace ? 'replaceState' : 'pushState'](null, '', address);
  place.set(readPlace());
  if (changesPage && !options.replace) scrollTo(0, 0);
}

export function hrefOf(to: string): string {
  return base + to.replace(/^\//, '');
}

export function usePlace(): Place {
  return useStore(place);
}

/** Changes some filters of the current view; undefined removes one. */
export function setSearch(values: Record<string, string | undefined>): void {
  const search = new URLSearchParams(place.value.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || value === '') search.delete(name);
    else search.set(name, value);
  }
  const text = search.toString();
  navigate(`${place.value.path}${text === '' ? '' : `?${text}`}`, { replace: true });
}

export function watchHistory(): void {
  addEventListener('popstate', () => place.set(readPlace()));
}

function readPlace(): Place {
  const path = `/${location.pathname.slice(base.length)}`.replace(/(.)\/$/, '$1');
  return { path, search: new URLSearchParams(location.search) };
}
