// The tenant's API keys with their scopes and expiry. New keys are shown once.
import { useState } from 'preact/hooks';
import { report } from '../../data/actions.ts';
import { type ApiError, api, enc } from '../../data/api.ts';
import { useTitle } from '../../data/jobs/holds.ts';
import { useQuery } from '../../data/query.ts';
import { may, session } from '../../data/session.ts';
import type { ApiKey, Scope } from '../../data/types.ts';
import { Copy } from '../../parts/copy.tsx';
import { Dialog, DialogFoot, Field } from '../../parts/dialog.tsx';
import { Empty, Loaded } from '../../parts/feedback.tsx';
import { toast } from '../../parts/shell/toasts.tsx';
import { Ago } from '../../parts/time.tsx';

const scopes: Record<Scope, string> = {
  read: 'read jobs, targets, events',
  enqueue: 'enqueue jobs',
  control: 'pause, resume, resolve, cancel',
  worker: 'claim jobs as a remote worker',
  admin: 'manage keys',
};

export function KeysPage() {
  useTitle('Keys');
  const keys = useQuery(may('admin') ? 'keys' : undefined, (signal) => api<{ keys: ApiKey[] }>('/keys', { signal }));
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<ApiKey>();
  const [ending, setEnding] = useState<ApiKey>();
  if (!may('admin')) return <Empty icon="lock" title="Keys need the scope admin" />;
  return (
    <>
      <header class="page-head">
        <h1>Keys</h1>
        <div class="page-actions">
          <button type="button" class="button button-main" onClick={() => setMaking(true)}>
            New key
          </button>
        </div>
      </header>
      <Loaded query={keys}>
        {(data) => (
          <ul class="key-list">
            {data.keys.map((key) => (
              <KeyRow key={key.id} apiKey={key} onRevoke={() => setEnding(key)} />
            ))}
          </ul>
        )}
      </Loaded>
      {making && (
        <NewKeyDialog
          onClose={() => setMaking(false)}
          onMade={(key) => {
            setMaking(false);
            setMade(key);
            keys.refresh();
          }}
        />
      )}
      {made && (
        <Dialog title="The new key" onClose={() => setMade(undefined)}>
          <p>Copy it now: it is shown this once and cannot be read again.</p>
          <p class="secret">
            <code>{made.key}</code> <Copy text={made.key ?? ''} label="Copy the key" />
          </p>
        </Dialog>
      )}
      {ending && (
        <RevokeDialog
          apiKey={ending}
          onClose={() => setEnding(undefined)}
          onDone={() => {
            setEnding(undefined);
            keys.refresh();
          }}
        />
      )}
    </>
  );
}

function KeyRow({ apiKey: key, onRevoke }: { apiKey: ApiKey; onRevoke: () => void }) {
  const own = typeof session.value !== 'string' && session.value.key.id === key.id;
  const ended = key.revoked_at !== null || (key.expires_at !== null && Date.parse(key.expires_at) < Date.now());
  return (
    <li class={ended ? 'key key-ended' : 'key'}>
      <div>
        <strong>{key.name}</strong> {own && <span class="chip">you</span>}
        <p class="muted small">
          <code>lh_{key.id}_…</code>
        </p>
      </div>
      <span class="chips">
        {key.scopes.map((scope) => (
          <span key={scope} class="chip" title={scopes[scope]}>
            {scope}
          </span>
        ))}
      </span>
      <span class="muted small">
        {key.revoked_at ? (
          <>
            revoked <Ago at={key.revoked_at} />
          </>
        ) : key.last_used_at ? (
          <>
            used <Ago at={key.last_used_at} />
          </>
        ) : (
          // The time of the last use is updated only occasionally.
          (own && 'in use') || 'never used'
        )}
        {key.expires_at && !key.revoked_at && (
          <>
            , ends <Ago at={key.expires_at} />
          </>
        )}
      </span>
      {!ended && (
        <button type="button" class="button button-quiet" onClick={onRevoke}>
          Revoke
        </button>
      )}
    </li>
  );
}

function NewKeyDialog({ onClose, onMade }: { onClose: () => void; onMade: (key: ApiKey) => void }) {
  const [error, setError] = useState<string>();
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const until = String(form.get('expires_at') ?? '');
    try {
      const { key } = await api<{ key: ApiKey }>('/keys', {
        method: 'POST',
        body: {
          name: String(form.get('name')).trim(),
          scopes: form.getAll('scopes'),
          ...(until !== '' && { expires_at: new Date(until).toISOString() }),
        },
      });
      onMade(key);
    } catch (problem) {
      setError((problem as ApiError).message);
    }
  };
  return (
    <Dialog title="New key" onClose={onClose}>
      <form onSubmit={submit}>
        <Field label="Name">
          <input name="name" required maxLength={200} autocomplete="off" />
        </Field>
        <fieldset class="scopes">
          <legend>Scopes</legend>
          {Object.entries(scopes).map(([scope, what]) => (
            <label key={scope} class="check">
              <input type="checkbox" name="scopes" value={scope} defaultChecked={scope === 'read'} />
              <code>{scope}</code> <span class="muted small">{what}</span>
            </label>
          ))}
        </fieldset>
        <Field label="Ends" hint="Leave it empty for a key without an end.">
          <input name="expires_at" type="datetime-local" />
        </Field>
        <DialogFoot error={error} onClose={onClose}>
          Make key
        </DialogFoot>
      </form>
    </Dialog>
  );
}

function RevokeDialog({ apiKey: key, onClose, onDone }: { apiKey: ApiKey; onClose: () => void; onDone: () => void }) {
  const revoke = async () => {
    await api(`/keys/${enc(key.id)}`, { method: 'DELETE' });
    toast(`Revoked ${key.name}`);
    onDone();
  };
  return (
    <Dialog title={`Revoke ${key.name}`} onClose={onClose}>
      <p>
        Requests with this key are refused within seconds, and sessions signed in with it end. This cannot be undone.
      </p>
      <footer class="dialog-foot">
        <button type="button" class="button" onClick={onClose}>
          Back
        </button>
        <button type="button" class="button button-danger" onClick={() => void revoke().catch(report)}>
          Revoke key
        </button>
      </footer>
    </Dialog>
  );
}
