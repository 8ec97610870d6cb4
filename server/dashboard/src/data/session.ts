// The signed-in person and their rights. The server decides; the page only hides actions that would be refused.
import { api, chosenTenant, sessionEnded } from './api.ts';
import { live } from './live.ts';
import { forgetAnswers } from './query.ts';
import { Store } from './store.ts';
import type { Scope, Session } from './types.ts';

export type SignedIn = Session | 'unknown' | 'nobody';
export const session = new Store<SignedIn>('unknown');
export const version = new Store('');

interface SessionAnswer {
  session: Session | null;
  version: string;
}

export async function readSession(): Promise<void> {
  take(await api<SessionAnswer>('/session'));
}

export async function signIn(body: { key: string } | { link: string }): Promise<void> {
  take(await api<SessionAnswer>('/session', { method: 'POST', body }));
}

export async function signOut(): Promise<void> {
  await api('/session', { method: 'DELETE' });
  take({ session: null, version: version.value });
}

export function chooseTenant(slug: string): void {
  if (chosenTenant.value === slug) return;
  live.stop();
  forgetAnswers();
  sessionStorage.setItem('leasehold.tenant', slug);
  chosenTenant.set(slug);
  live.start();
}

/** The dashboard is part of another program, which mounted it without actions. */
export const isReadOnly = document.querySelector('meta[name="leasehold-read-only"]') !== null;

export function may(scope: Scope): boolean {
  const now = session.value;
  if (typeof now === 'string' || (isReadOnly && scope !== 'read')) return false;
  if (now.operator) return chosenTenant.value !== undefined && scope !== 'worker';
  if (now.tenant_status === 'SUSPENDED' && scope !== 'read') return false;
  return now.key.scopes.includes(scope);
}

export function isOperator(): boolean {
  const now = session.value;
  return typeof now !== 'string' && now.operator;
}

function take(answer: SessionAnswer): void {
  version.set(answer.version);
  sessionEnded.set(false);
  live.stop();
  forgetAnswers();
  if (answer.session === null) {
    chosenTenant.set(undefined);
    session.set('nobody');
    return;
  }
  // The name of a tenant is not secret, and is stored for this tab only.
  chosenTenant.set(answer.session.operator ? (sessionStorage.getItem('leasehold.tenant') ?? undefined) : undefined);
  session.set(answer.session);
  if (!answer.session.operator || chosenTenant.value !== undefined) live.start();
}
