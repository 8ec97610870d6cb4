// Guards of who may do what, of addresses, and of what reaches the log.
import type { Guard } from './guard.ts';

export const accessGuards: readonly Guard[] = [
  {
    name: 'scopes of keys',
    prevents: 'a key does more than it was made for',
    file: 'server/http/request/authenticate.ts',
    edits: [
      {
        search: 'if (wanted.some((scope) => caller.key.scopes.includes(scope))) return;',
        replace: 'if (wanted.length > 0) return;',
      },
    ],
    tests: ['test/integration/http/access-matrix.test.ts'],
  },
  {
    name: 'routes of operators',
    prevents: 'a tenant reads and changes others with the routes of operators',
    file: 'server/http/request/authenticate.ts',
    edits: [{ search: 'if (caller.tenant) throw', replace: 'if (caller.tenant && caller.key.id === "") throw' }],
    tests: ['test/integration/http/access-matrix.test.ts'],
  },
  {
    name: 'suspended tenants',
    prevents: 'a suspended tenant enqueues and changes jobs',
    file: 'server/http/request/authenticate.ts',
    edits: [
      { search: `if (tenant.status === 'ACTIVE') return;`, replace: `if (tenant.status !== 'DELETING') return;` },
    ],
    tests: ['test/integration/http/access-matrix.test.ts'],
  },
  {
    name: 'positions belong to their tenant',
    prevents: 'a tenant uses positions in lists and streams that another one was given',
    file: 'server/kernel/sealed-text.ts',
    edits: [{ search: `createHmac('sha256', secret)`, replace: `createHmac('sha256', secret.slice(0, 0))` }],
    tests: ['test/unit/events/log/position.test.ts'],
  },
  {
    name: 'revoked links of questions',
    prevents: 'a person answers a question by a link that was revoked',
    file: 'server/jobs/questions/question-links.ts',
    edits: [{ search: `when l.revoked_at is not null then 'revoked'`, replace: `when false then 'revoked'` }],
    tests: [
      'test/integration/jobs/questions/question-links.test.ts',
      'test/integration/http/access-matrix.test.ts',
      '-t',
      'link',
    ],
  },
  {
    name: 'a limit for requests that arrive slowly',
    prevents: 'clients that send byte by byte keep connections and the memory of their bodies for ever',
    file: 'server/http/server.ts',
    edits: [
      {
        search: 'requestTimeout: this.#options.requestTimeoutMs ?? defaultRequestTimeoutMs,',
        replace: 'requestTimeout: 0 * (this.#options.requestTimeoutMs ?? defaultRequestTimeoutMs),',
      },
    ],
    tests: ['test/integration/http/server.test.ts', '-t', 'disconnects a client'],
  },
  {
    name: 'addresses inside the network',
    prevents: 'a webhook reaches the hosts around the daemon by their address',
    file: 'server/webhooks/sender.ts',
    edits: [
      { search: 'if (!this.#options.allowPrivate && isAddressLiteral', replace: 'if (false && isAddressLiteral' },
    ],
    tests: ['test/integration/http/abuse.test.ts', '-t', 'an address inside the network'],
  },
  {
    name: 'names of addresses inside the network',
    prevents: 'a webhook reaches the hosts around the daemon by a name',
    file: 'server/webhooks/sender.ts',
    edits: [{ search: 'const lookup = allowPrivate ? given : publicLookup(given);', replace: 'const lookup = given;' }],
    tests: ['test/integration/webhooks/sender.test.ts'],
  },
  {
    name: 'errors show no values of rows',
    prevents: 'a payload is in the log after Postgres has refused its row',
    file: 'server/database/connections/connections.ts',
    edits: [{ search: '      hideValues(error);\n', replace: '' }],
    tests: ['test/integration/http/abuse.test.ts', '-t', 'the log'],
  },
];
