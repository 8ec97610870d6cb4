// Signing in: with an API key, or by the one-time link that a first start prints. The key is sent once and kept
// nowhere.
import { useEffect, useState } from 'preact/hooks';
import { useTitle } from '../data/jobs/holds.ts';
import { navigate } from '../data/router.ts';
import { signIn } from '../data/session.ts';
import { Mark } from '../parts/shell/shell.tsx';

export function SignInPage({ ended }: { ended: boolean }) {
  useTitle('Sign in');
  const [error, setError] = useState<string>();
  const [busy, setBusy] = useState(false);
  const attempt = async (body: { key: string } | { link: string }) => {
    setBusy(true);
    setError(undefined);
    try {
      await signIn(body);
      if (location.pathname.endsWith('/sign-in')) navigate('/', { replace: true });
    } catch (problem) {
      setError((problem as Error).message);
    }
    setBusy(false);
  };
  useEffect(() => {
    const link = location.hash.slice(1);
    if (!location.pathname.endsWith('/sign-in') || link === '') return;
    history.replaceState(null, '', location.pathname);
    void attempt({ link });
  }, []);
  return (
    <main class="sign-in">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const key = String(new FormData(event.target as HTMLFormElement).get('key') ?? '').trim();
          if (key !== '') void attempt({ key });
        }}
      >
        <h1>
          <Mark /> Leasehold
        </h1>
        {ended && !error && <p class="note">Your session has ended, or its key was revoked. Sign in again.</p>}
        <label class="field" for="key">
          <span class="field-label">API key</span>
        </label>
        <input
          id="key"
          name="key"
          type="password"
          autocomplete="off"
          spellcheck={false}
          placeholder="lh_…"
          required
          aria-describedby="key-hint"
        />
        <p class="field-hint" id="key-hint">
          A tenant's key shows that tenant; an operator's key shows all of them. The page does not keep it.
        </p>
        {error && (
          <p class="field-error" role="alert">
            {error}
          </p>
        )}
        <button type="submit" class="button button-main button-large" disabled={busy}>
          {busy ? 'Signing in' : 'Sign in'}
        </button>
      </form>
    </main>
  );
}
