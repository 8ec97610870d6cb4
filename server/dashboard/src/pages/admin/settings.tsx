// The settings of the selected tenant: the current values, their source, and a form to change them.
import { useState } from 'preact/hooks';
import { ApiError, api, chosenTenant, enc } from '../../data/api.ts';
import { useTitle } from '../../data/jobs/holds.ts';
import { useQuery } from '../../data/query.ts';
import { isOperator, isReadOnly } from '../../data/session.ts';
import { Dialog, DialogFoot, Field } from '../../parts/dialog.tsx';
import { Empty, Loaded } from '../../parts/feedback.tsx';
import { toast } from '../../parts/shell/toasts.tsx';

interface Setting {
  name: string;
  description: string;
  value: unknown;
  source: 'tenant' | 'environment' | 'default';
  setting: string | null;
}

export function SettingsPage() {
  useTitle('Settings');
  const slug = chosenTenant.value;
  const [edited, setEdited] = useState<Setting>();
  const settings = useQuery(isOperator() && slug ? `settings:${slug}` : undefined, (signal) =>
    api<{ settings: Setting[] }>(`/admin/tenants/${enc(slug ?? '')}/settings`, { signal }),
  );
  if (!isOperator()) return <Empty icon="lock" title="Settings need an operator's key" />;
  return (
    <>
      <header class="page-head">
        <h1>Settings of {slug}</h1>
      </header>
      <Loaded query={settings}>
        {(data) => (
          <dl class="settings card">
            {data.settings.map((each) => (
              <div key={each.name}>
                <dt>
                  <code>{each.name}</code>
                  <span class="muted small">{each.description}</span>
                </dt>
                <dd>
                  <span>
                    <code>{shown(each.value)}</code> <Source setting={each} />
                  </span>
                  {!isReadOnly && (
                    <button
                      type="button"
                      class="button button-quiet"
                      aria-label={`Change ${each.name}`}
                      onClick={() => setEdited(each)}
                    >
                      Change
                    </button>
                  )}
                </dd>
              </div>
            ))}
          </dl>
        )}
      </Loaded>
      {edited && slug && (
        <SettingDialog
          slug={slug}
          setting={edited}
          onClose={() => setEdited(undefined)}
          onDone={() => {
            setEdited(undefined);
            settings.refresh();
          }}
        />
      )}
    </>
  );
}

function shown(value: unknown): string {
  return value === null || (Array.isArray(value) && value.length === 0) ? 'none' : JSON.stringify(value);
}

function Source({ setting: { source, setting } }: { setting: Setting }) {
  if (source === 'tenant') return <span class="chip chip-own">set for this tenant</span>;
  if (source === 'environment') return <span class="chip">{setting} of the daemon</span>;
  return <span class="muted small">{setting === null ? 'default' : `default of ${setting}`}</span>;
}

interface SettingDialogProps {
  slug: string;
  setting: Setting;
  onClose: () => void;
  onDone: () => void;
}

function SettingDialog({ slug, setting, onClose, onDone }: SettingDialogProps) {
  const [error, setError] = useState<string>();
  const save = async (value: unknown) => {
    try {
      await api(`/admin/tenants/${enc(slug)}`, { method: 'PATCH', body: { settings: patchOf(setting.name, value) } });
      toast(`Changed ${setting.name} of ${slug}`);
      onDone();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem.message : String(problem));
    }
  };
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.target as HTMLFormElement).get('value') ?? '').trim();
    const value = text === '' ? null : parse(text);
    if (value === undefined) setError('This is not JSON: a text needs quotes.');
    else void save(value);
  };
  return (
    <Dialog title={`Change ${setting.name}`} onClose={onClose}>
      <form onSubmit={submit}>
        <p>{setting.description}</p>
        <Field label="Value" hint="JSON: a number, a text in quotes, a list or an object. Empty: back to the default.">
          <textarea
            name="value"
            rows={3}
            class="mono"
            spellcheck={false}
            defaultValue={setting.source === 'tenant' ? JSON.stringify(setting.value) : ''}
          />
        </Field>
        <DialogFoot error={error} onClose={onClose}>
          Save
        </DialogFoot>
      </form>
    </Dialog>
  );
}

/** `retention.event_days` changes one part and leaves the others. */
function patchOf(name: string, value: unknown): Record<string, unknown> {
  const [first = '', second] = name.split('.');
  return { [first]: second === undefined ? value : { [second]: value } };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
