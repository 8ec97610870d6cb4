// A Postgres URL in the syntax of libpq, with several hosts of which the one that accepts writes is used, such as
// postgres://user@h1:5432,h2:5432/db?target_session_attrs=read-write. The driver accepts one host per URL.

export interface DatabaseAddress {
  /** One URL per host, in the given order. */
  urls: string[];
  /** Servers that do not accept writes are skipped. */
  writableOnly: boolean;
}

// A daemon and its command line cannot use a read-only server.
const sessionAttributes = ['any', 'read-write', 'primary'];

/** Returns undefined if the text is not such a URL. */
export function parseDatabaseUrl(text: string): DatabaseAddress | undefined {
  const [, scheme, user = '', hosts = '', path = '', query = ''] =
    /^(postgres(?:ql)?:\/\/)([^/?#]*@)?([^/?#@]*)(\/[^?#]*)?(?:\?([^#]*))?$/.exec(text) ?? [];
  if (scheme === undefined) return undefined;
  const parameters = new URLSearchParams(query);
  const wanted = parameters.get('target_session_attrs');
  if (wanted !== null && !sessionAttributes.includes(wanted)) return undefined;
  parameters.delete('target_session_attrs');
  const hostsWithPorts = hosts === '' ? hostsWithPortsOf(parameters) : hosts.split(',');
  const rest = parameters.size === 0 ? '' : `?${parameters}`;
  const urls = hostsWithPorts.map((host) => `${scheme}${user}${host}${path}${rest}`);
  // Without a host the driver uses its default.
  if (urls.length === 0) urls.push(`${scheme}${user}${path}${rest}`);
  if (hostsWithPorts.includes('') || !urls.every(isUsable)) return undefined;
  return { urls, writableOnly: wanted === null ? urls.length > 1 : wanted !== 'any' };
}

/** `?host=h1,h2&port=5432,5433`. One host, or a socket directory, is left to the driver. */
function hostsWithPortsOf(parameters: URLSearchParams): string[] {
  const hosts = parameters.get('host')?.split(',') ?? [];
  if (hosts.length < 2) return [];
  const ports = parameters.get('port')?.split(',') ?? [];
  parameters.delete('host');
  parameters.delete('port');
  return hosts.map((host, i) => `${encodeURIComponent(host)}${portOf(ports.length === 1 ? ports[0] : ports[i])}`);
}

function portOf(port: string | undefined): string {
  return port === undefined || port === '' ? '' : `:${port}`;
}

/** The driver accepts a URL with a user and no host, which the standard parser refuses. */
function isUsable(url: string): boolean {
  return URL.canParse(url) || URL.canParse(url.replace('@/', '@host/'));
}
