// Light or dark: the system's setting, unless the person has chosen one.
import { Store } from './store.ts';

export type Theme = 'system' | 'light' | 'dark';
const item = 'leasehold.theme';

export const theme = new Store<Theme>((localStorage.getItem(item) as Theme | null) ?? 'system');

export function chooseTheme(next: Theme): void {
  localStorage.setItem(item, next);
  theme.set(next);
  applyTheme();
}

export function applyTheme(): void {
  const { dataset } = document.documentElement;
  if (theme.value === 'system') delete dataset.theme;
  else dataset.theme = theme.value;
}
