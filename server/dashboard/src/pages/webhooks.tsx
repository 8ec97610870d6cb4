// Webhook deliveries with their URL and result.
import { useState } from 'preact/hooks';
import { report } from '../data/actions.ts';
import { api, enc, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import { hrefOf, setSearch, usePlace } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { Delivery } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { Document } from '../parts/json-tree.tsx';
import { toast } from '../parts/shell/toasts.tsx';
import { Ago } from '../parts/time.tsx';

const states = ['', 'pending', 'delivered', 'failed', 'disabled'] as const;
const tones = { pending: 'wait', delivered: 'done', failed: 'fail', disabled: 'hold' } as const;

interface Page {
  deliveries: Delivery[];
  next_cursor: string | null;
}

export function WebhooksPage() {
  useTitle('Webhooks');
  const { search } = usePlace();
  const state = search.get('state') ?? '';
  const [pages, setPages] = useState(1);
  const deliveries = useQuery(
    `deliveries:${state}:${pages}`,
    async (signal) => {
      const all: Page = { deliveries: [], next_cursor: null };
      for (let n = 0; n < pages; n++) {
        const page = await api<Page>(
          `/webhooks/deliveries${queryOf({ state, limit: 100, cursor: all.next_cursor ?? undefined })}`,
          { signal },
        );
        all.deliveries.push(...page.deliveries);
        all.next_cursor = page.next_cursor;
        if (page.next_cursor === null) break;
      }
      return all;
    },
    { on: (event) => event.type.startsWith('job.webhook') || event.to !== event.from },
  );
  return (
    <>
      <header class="page-head">
        <h1>Webhooks</h1>
      </header>
      <div class="filters">
        <div class="segments" role="group" aria-label="State">
          {states.map((each) => (
            <button key={each} type="button" aria-pressed={each === state} onClick={() => setSearch({ state: each })}>
              {each === '' ? 'All' : each}
            </button>
          ))}
        </div>
      </div>
      <Loaded query={deliveries}>
        {(page) =>
          page.deliveries.length === 0 ? (
            <Empty icon="webhooks" title={state === '' ? 'No deliveries yet' : `No ${state} deliveries`}>
              <p>Events go to the address that a job names as webhook_url, or to the one in the tenant's settings.</p>
            </Empty>
          ) : (
            <>
              <ul class="deliveries">
                {page.deliveries.map((delivery) => (
                  <DeliveryRow key={delivery.id} delivery={delivery} onChange={deliveries.refresh} />
                ))}
              </ul>
              {page.next_cursor !== null && (
                <button type="button" class="button more-button" onClick={() => setPages(pages + 1)}>
                  Show more
                </button>
              )}
            </>
          )
        }
      </Loaded>
    </>
  );
}

function DeliveryRow({ delivery, onChange }: { delivery: Delivery; onChange: () => void }) {
  const [open, setOpen] = useState(false);
  const resend = async () => {
    await api(`/webhooks/deliveries/${enc(delivery.id)}/resend`, { method: 'POST' });
    toast('Sent again, with a fresh set of tries');
    onChange();
  };
  const enable = async () => {
    await api('/webhooks/enable', { method: 'POST', body: { url: delivery.url } });
    toast(`Enabled ${delivery.url}`);
    onChange();
  };
  return (
    <li class="delivery">
      <span class={`status tone-${tones[delivery.state]}`}>
        <span class={`glyph glyph-${tones[delivery.state]}`} aria-hidden="true" />
        {delivery.state}
      </span>
      <div class="delivery-what">
        <p>
          <a href={hrefOf(`/jobs/${delivery.job_id}`)}>
            <code>{delivery.event_type}</code>
          </a>{' '}
          <span class="muted">to</span> <span class="break">{delivery.url}</span>
        </p>
        <p class="muted small">
          {delivery.attempts} {delivery.attempts === 1 ? 'try' : 'tries'}
          {delivery.last_status !== null && <>, answered {delivery.last_status}</>}
          {delivery.last_error && <>: {delivery.last_error}</>}
          {delivery.next_at && (
            <>
              , next try <Ago at={delivery.next_at} />
            </>
          )}
        </p>
      </div>
      <span class="muted small">
        <Ago at={delivery.created_at} />
      </span>
      <button type="button" class="button button-quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? 'Fewer details' : 'Details'}
      </button>
      {may('control') && (
        <div class="actions">
          <button type="button" class="button button-quiet" onClick={() => void resend().catch(report)}>
            Send again
          </button>
          {delivery.state === 'disabled' && (
            <button type="button" class="button button-quiet" onClick={() => void enable().catch(report)}>
              Enable address
            </button>
          )}
        </div>
      )}
      {open && <DeliveryDetails delivery={delivery} />}
    </li>
  );
}

/** Every attempt, and the body as it is sent. */
function DeliveryDetails({ delivery }: { delivery: Delivery }) {
  const whole = useQuery(`delivery:${delivery.id}:${delivery.attempts}`, (signal) =>
    api<{ delivery: Delivery & { body: unknown } }>(`/webhooks/deliveries/${enc(delivery.id)}`, { signal }),
  );
  return (
    <div class="delivery-details">
      {delivery.tries.length === 0 ? (
        <p class="muted small">It was not tried yet.</p>
      ) : (
        <ol class="tries" aria-label="Attempts">
          {delivery.tries.map((each) => (
            <li key={each.at} class="small">
              <span class={each.error === null ? 'tone-done' : 'tone-fail'}>{each.status ?? 'no answer'}</span>{' '}
              <Ago at={each.at} /> <span class="muted">{each.error ?? ''}</span>
            </li>
          ))}
        </ol>
      )}
      <Loaded query={whole}>{(data) => <Document label="Body" value={data.delivery.body} />}</Loaded>
    </div>
  );
}
