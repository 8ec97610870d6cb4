// A browser in the POSIX locale (LANG=C) has a language such as `en-US@posix`, which Intl refuses with an exception.
// Code that formats in the browser's language gets one that Intl accepts.

const { navigator } = globalThis as { navigator?: { readonly language: string } };
if (navigator !== undefined) ensureValidLanguage(navigator);

/** @internal Exported for its test. */
export function ensureValidLanguage(browser: { readonly language: string }): void {
  const { language } = browser;
  if (isLocale(language)) return;
  const base = /^[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*/.exec(language)?.[0] ?? '';
  Object.defineProperty(browser, 'language', { value: isLocale(base) ? base : 'en-US', configurable: true });
}

function isLocale(text: string): boolean {
  try {
    return Intl.getCanonicalLocales(text).length === 1;
  } catch {
    return false;
  }
}
