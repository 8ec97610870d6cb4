// Must be loaded before the Postgres driver, which recognizes by `navigator` where it runs. Node 20 has none: the driver
// then makes a Response, and with it Node loads its HTTP client, several megabytes in each thread.
const isMissing = !('navigator' in globalThis);
if (isMissing) {
  const userAgent = `Node.js/${process.versions.node.split('.', 1)[0]}`;
  Object.defineProperty(globalThis, 'navigator', { value: { userAgent }, configurable: true, enumerable: true });
}

/** Handlers find the globals of their version of Node. */
export function removeNavigator(): void {
  if (isMissing) Reflect.deleteProperty(globalThis, 'navigator');
}
