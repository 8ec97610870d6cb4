// For operators: all tenants, and the selection of one.
import { useState } from 'preact/hooks';
import { report } from '../../data/actions.ts';
import { api, chosenTenant, enc } from '../../data/api.ts';
import { useTitle } from '../../data/jobs/holds.ts';
import { useQuery } from '../../data/query.ts';
import { navigate } from '../../data/router.ts';
import { chooseTenant, isOperator, isReadOnly } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import type { Tenant } from '../../data/types.ts';
import { Empty, Loaded } from '../../parts/feedback.tsx';
import { toast } from '../../parts/shell/toasts.tsx';
import { Ago } from '../../parts/time.tsx';

interface Page {
  tenants: Tenant[];
  next_cursor: string | null;
}

export function TenantsPage({ slug }: { slug: string | undefined }) {
  useTitle('Tenants');
  const chosen = useStore(chosenTenant);
  const [text, setText] = useState(slug ?? '');
  const tenants = useQuery(isOperator() ? 'tenants:all' : undefined, async (signal) => {
    const all: Tenant[] = [];
    let cursor: string | undefined;
    do {
      const page = await api<Page>(`/admin/tenants?limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`, {
        signal,
      });
      all.push(...page.tenants);
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined && all.length < 2000);
    return all;
  });
  if (!isOperator()) return <Empty icon="lock" title="Tenants need an operator's key" />;
  return (
    <>
      <header class="page-head">
        <h1>Tenants</h1>
      </header>
      <div class="filters">
        <label class="search-field">
          <span class="visually-hidden">Part of a tenant's name</span>
          <input
            type="search"
            placeholder="Part of a tenant's name"
            value={text}
            onInput={(event) => setText((event.target as HTMLInputElement).value)}
          />
        </label>
      </div>
      <Loaded query={tenants}>
        {(all) => {
          const shown = all.filter((tenant) => tenant.slug.includes(text.toLowerCase()));
          if (shown.length === 0)
            return <Empty icon="tenants" title={all.length === 0 ? 'No tenants yet' : 'No tenant matches'} />;
          return (
            <ul class="key-list">
              {shown.slice(0, 300).map((tenant) => (
                <li key={tenant.id} class="key">
                  <div>
                    <strong>{tenant.slug}</strong> {chosen === tenant.slug && <span class="chip">shown now</span>}
                    <p class="muted small">
                      <code>{tenant.schema}</code>
                    </p>
                  </div>
                  <span class={`status tone-${tenant.status === 'ACTIVE' ? 'done' : 'hold'}`}>
                    <span class={`glyph glyph-${tenant.status === 'ACTIVE' ? 'done' : 'hold'}`} aria-hidden="true" />
                    {tenant.status.toLowerCase()}
                  </span>
                  <span class="muted small">
                    made <Ago at={tenant.created_at} />
                  </span>
                  <div class="actions">
                    <button
                      type="button"
                      class="button"
                      onClick={() => {
                        chooseTenant(tenant.slug);
                        navigate('/');
                      }}
                    >
                      Look at it
                    </button>
                    {!isReadOnly && <StatusButton tenant={tenant} onDone={tenants.refresh} />}
                  </div>
                </li>
              ))}
            </ul>
          );
        }}
      </Loaded>
    </>
  );
}

/** Suspending starts nothing new for the tenant, and can be undone at once. */
function StatusButton({ tenant, onDone }: { tenant: Tenant; onDone: () => void }) {
  if (tenant.status !== 'ACTIVE' && tenant.status !== 'SUSPENDED') return null;
  const change = async (verb: 'suspend' | 'activate') => {
    await api(`/admin/tenants/${enc(tenant.slug)}/${verb}`, { method: 'POST' });
    toast(verb === 'suspend' ? `Suspended ${tenant.slug}: nothing is claimed` : `Activated ${tenant.slug}`, {
      ...(verb === 'suspend' && { undo: () => void change('activate').catch(report) }),
    });
    onDone();
  };
  const verb = tenant.status === 'ACTIVE' ? 'suspend' : 'activate';
  return (
    <button type="button" class="button button-quiet" onClick={() => void change(verb).catch(report)}>
      {verb === 'suspend' ? 'Suspend' : 'Activate'}
      <span class="visually-hidden"> {tenant.slug}</span>
    </button>
  );
}
