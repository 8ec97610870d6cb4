// Serves the built dashboard: hashed assets that browsers cache forever, and one page for all its paths, with a content
// security policy that allows only the daemon itself.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { type Request, type RequestHandler, type Response, Router } from 'express';

/** Paths of the page; all others belong to the API or are unknown. */
const pagePaths = [
  '/',
  '/sign-in',
  '/targets{/*rest}',
  '/jobs{/*rest}',
  '/questions',
  '/workers',
  '/schedules{/*rest}',
  '/webhooks{/*rest}',
  '/events',
  '/capacity',
  '/operations{/*rest}',
  '/tenants{/*rest}',
  '/keys',
  '/settings',
  '/docs',
];

const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  // The favicon with the number of holds is drawn by the page.
  "img-src 'self' data:",
  "connect-src 'self'",
  "font-src 'self'",
  "manifest-src 'self'",
  "base-uri 'self'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

export interface DashboardOptions {
  /** The page shows no actions. Refusing them is up to the API that is mounted with it. */
  readOnly?: boolean | undefined;
}

/**
 * Returns a router for pages and assets that works under any prefix: the page uses the prefix of the request as its
 * base. Returns no router if the dashboard was not built; the API works without it.
 */
export function dashboardPages(directory: string | undefined, options: DashboardOptions = {}): Router[] {
  if (directory === undefined) return [];
  const file = join(directory, 'index.html');
  if (!existsSync(file)) return [];
  const router = Router({ caseSensitive: true });
  const pages = new Pages(readFileSync(file, 'utf8'), options);
  const assets = readAssets(join(directory, 'assets'));
  router.get('/assets/:name', (request, response, next) => {
    const asset = assets.get(request.params.name);
    if (asset === undefined) return next();
    // Their names change with their content.
    response.set('Cache-Control', 'public, max-age=31536000, immutable');
    asset.send(request, response);
  });
  const page: RequestHandler = (request, response) => {
    response.set({ 'Content-Security-Policy': policy, 'Cache-Control': 'no-cache' });
    pages.below(request.baseUrl ?? '').send(request, response);
  };
  for (const path of pagePaths) router.get(path, page);
  return [router];
}

// A host mounts the page once or twice, but a prefix with parameters could have any number of values.
const maxPages = 20;

/** The page, cached for each prefix under which it is requested. */
class Pages {
  #html: string;
  #options: DashboardOptions;
  #known = new Map<string, Asset>();

  constructor(html: string, options: DashboardOptions) {
    this.#html = html;
    this.#options = options;
  }

  below(prefix: string): Asset {
    const known = this.#known.get(prefix);
    if (known !== undefined) return known;
    const readOnly = this.#options.readOnly ? '\n    <meta name="leasehold-read-only" content="true" />' : '';
    const head = `<head>\n    <base href="${escapeAttribute(prefix)}/" />${readOnly}`;
    const page = new Asset('html', Buffer.from(this.#html.replace('<head>', () => head)));
    if (this.#known.size < maxPages) this.#known.set(prefix, page);
    return page;
  }
}

function escapeAttribute(text: string): string {
  return text.replace(/[&"<>]/g, (character) => `&#${character.charCodeAt(0)};`);
}

function readAssets(directory: string): Map<string, Asset> {
  const names = existsSync(directory) ? readdirSync(directory) : [];
  return new Map(
    names.map((name) => [name, new Asset(name.slice(name.lastIndexOf('.') + 1), readFileSync(join(directory, name)))]),
  );
}

/** A file in memory (all together are a few hundred kilobytes), compressed at its first request. */
class Asset {
  #type: string;
  #body: Buffer;
  #compressed = new Map<string, Buffer>();

  constructor(type: string, body: Buffer) {
    this.#type = type;
    this.#body = body;
  }

  send(request: Request, response: Response): void {
    response.type(this.#type).vary('Accept-Encoding');
    const encoding = request.acceptsEncodings('br', 'gzip') || undefined;
    if (encoding === undefined || encoding === 'identity') return void response.send(this.#body);
    response.set('Content-Encoding', encoding).send(this.#as(encoding));
  }

  #as(encoding: string): Buffer {
    let body = this.#compressed.get(encoding);
    if (body === undefined) {
      body = encoding === 'br' ? brotliCompressSync(this.#body) : gzipSync(this.#body);
      this.#compressed.set(encoding, body);
    }
    return body;
  }
}
