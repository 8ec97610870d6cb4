// The guards that keep the promises of docs/guarantees.md, each with a patch that takes it out and the tests that must
// fail then. `npm run test:guards` applies them one by one in a copy.
import { accessGuards } from './access-guards.ts';
import { leaseGuards } from './lease-guards.ts';
import { recordGuards } from './record-guards.ts';
import { waitGuards } from './wait-guards.ts';

export const guards = [...leaseGuards, ...recordGuards, ...waitGuards, ...accessGuards];
