// Must be loaded before the Postgres driver, which detects its runtime by `navigator`. Node 20 has none; the driver
// then creates a Response, for which Node loads its HTTP client, several megabytes in each thread.
const isMissing = !('navigator' in globalThis);
if (isMissing) {
  const userAgent = `Node.js/${process.versions.node.split('.', 1)[0]}`;
  Object.defineProperty(globalThis, 'navigator', { value: { userAgent }, configurable: true, enumerable: true });
}

/** Handlers find the globals of their version of Node. */
export function removeNavigator(): void {
  if (isMissing) Reflect.deleteProperty(globalThis, 'navigator');
}
