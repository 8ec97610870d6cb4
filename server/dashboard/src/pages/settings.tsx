// The settings of the chosen tenant: what is set, and what applies where nothing is.
import { api, chosenTenant, enc } from '../data/api.ts';
import { useTitle } from '../data/holds.ts';
import { useQuery } from '../data/query.ts';
import { isOperator } from '../data/session.ts';
import type { Tenant } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';

const known: { name: string; meaning: string; otherwise: string }[] = [
  { name: 'concurrency', meaning: 'Jobs that one daemon runs at once', otherwise: 'TENANT_CONCURRENCY' },
  { name: 'capacity_units', meaning: 'Cost units that may run at once', otherwise: 'no bound' },
  { name: 'queue_capacity_units', meaning: 'The same, by queue', otherwise: 'no bound' },
  { name: 'token_limit', meaning: 'Tokens that one job may use', otherwise: 'TOKEN_LIMIT' },
  { name: 'max_queued', meaning: 'Most jobs that may wait', otherwise: 'no bound' },
  { name: 'on_drain', meaning: 'What a drain does with jobs that outlast it', otherwise: 'pause' },
  { name: 'remote_job_types', meaning: 'Types that remote workers may take', otherwise: 'none' },
  { name: 'retention', meaning: 'How long finished jobs and events are kept', otherwise: 'the settings of the daemon' },
  { name: 'webhook', meaning: 'Where events go when a job names no address', otherwise: 'nowhere' },
];

export function SettingsPage() {
  useTitle('Settings');
  const slug = chosenTenant.value;
  const tenant = useQuery(isOperator() && slug ? `settings:${slug}` : undefined, (signal) =>
    api<{ tenant: Tenant } | Tenant>(`/admin/tenants/${enc(slug ?? '')}`, { signal }),
  );
  if (!isOperator()) return <Empty icon="lock" title="Settings need an operator's key" />;
  return (
    <>
      <header class="page-head">
        <h1>Settings of {slug}</h1>
      </header>
      <Loaded query={tenant}>
        {(data) => {
          const { settings } = 'tenant' in data ? data.tenant : data;
          return (
            <dl class="settings card">
              {known.map(({ name, meaning, otherwise }) => (
                <div key={name}>
                  <dt>
                    <code>{name}</code>
                    <span class="muted small">{meaning}</span>
                  </dt>
                  <dd>
                    {settings[name] === undefined ? (
                      <span class="muted">not set: {otherwise} applies</span>
                    ) : (
                      <>
                        <code>{JSON.stringify(settings[name])}</code> <span class="chip">set for this tenant</span>
                      </>
                    )}
                  </dd>
                </div>
              ))}
            </dl>
          );
        }}
      </Loaded>
      <p class="muted small">Change them with PATCH /api/admin/tenants/{slug} or `leasehold tenants set`.</p>
    </>
  );
}
