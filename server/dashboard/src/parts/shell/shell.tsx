// The frame of every page: navigation, tenant, and the state of the live stream.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { api, chosenTenant } from '../../data/api.ts';
import { attentionTotal, openQuestions } from '../../data/jobs/holds.ts';
import { live } from '../../data/live.ts';
import { useQuery } from '../../data/query.ts';
import { hrefOf, navigate, usePlace } from '../../data/router.ts';
import { chooseTenant, isReadOnly, session, signOut, version } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { chooseTheme, theme } from '../../data/theme.ts';
import type { Tenant } from '../../data/types.ts';
import { Icon } from '../icons.tsx';
import { span, useNow } from '../time.tsx';
import { entries, type NavEntry } from './nav-entries.ts';
import { openPalette } from './palette.tsx';

// The entries that fit at the bottom of a phone; a menu has the rest.
const firstOnPhones = 3;

export function Shell({ children }: { children: ComponentChildren }) {
  // A fragment alone would be resolved against <base>, which is another page.
  usePlace();
  const [menu, setMenu] = useState(false);
  return (
    <div class="shell">
      <a class="skip-link" href={`${location.pathname}${location.search}#main`}>
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href={hrefOf('/')}>
          <Mark /> <span>Leasehold</span>
        </a>
        <TenantName />
        <button type="button" class="search-button" onClick={openPalette}>
          <Icon name="search" size={14} />
          <span class="wide-only">Search or jump to</span>
          <kbd class="wide-only">⌘K</kbd>
          <span class="visually-hidden">Open the command palette</span>
        </button>
        {isReadOnly && <span class="chip">read only</span>}
        <LiveSign />
        <ThemeButton />
        <AccountButton />
      </header>
      <nav class="side" aria-label="Pages">
        <NavLinks />
        <p class="side-foot muted small">{useStore(version)}</p>
      </nav>
      <main id="main" class="main" tabIndex={-1}>
        {children}
      </main>
      <nav class="bottom" aria-label="Pages, short">
        {entries.slice(0, firstOnPhones).map((entry) => (
          <NavLink key={entry.to} entry={entry} />
        ))}
        <button type="button" class="nav-link" aria-expanded={menu} onClick={() => setMenu(!menu)}>
          <Icon name="more" />
          <span>More</span>
        </button>
        {menu && (
          <div class="sheet" onClick={() => setMenu(false)}>
            {entries.slice(firstOnPhones).map((entry) => (
              <NavLink key={entry.to} entry={entry} />
            ))}
          </div>
        )}
      </nav>
    </div>
  );
}

function NavLinks() {
  return (
    <>
      {entries.map((entry) => (
        <NavLink key={entry.to} entry={entry} />
      ))}
    </>
  );
}

function NavLink({ entry }: { entry: NavEntry }) {
  const { path } = usePlace();
  const total = useStore(attentionTotal);
  const questions = useStore(openQuestions);
  if (entry.shown && !entry.shown()) return null;
  const here = entry.to === '/' ? path === '/' : path.startsWith(entry.to);
  return (
    <a class="nav-link" href={hrefOf(entry.to)} aria-current={here ? 'page' : undefined}>
      <Icon name={entry.icon} />
      <span>{entry.label}</span>
      {entry.to === '/' && <Count of={total ?? 0} title="Holds and questions that wait for a person" />}
      {entry.to === '/questions' && <Count of={questions} title="Questions that wait for an answer" />}
    </a>
  );
}

function Count({ of, title }: { of: number; title: string }) {
  if (of === 0) return null;
  return (
    <span class="count" title={title}>
      {of > 999 ? '999+' : of}
    </span>
  );
}

export function Mark() {
  return (
    <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" class="mark-ground" />
      <path d="M8 10h10M8 16h16M8 22h10" stroke="#fff" stroke-width="3" stroke-linecap="round" />
      <circle cx="23" cy="10" r="2.2" fill="#f2b13d" />
      <circle cx="23" cy="22" r="2.2" fill="#7fd6c8" />
    </svg>
  );
}

function TenantName() {
  const now = useStore(session);
  const tenant = useStore(chosenTenant);
  if (typeof now === 'string') return null;
  if (!now.operator) return <span class="tenant-name">{now.tenant}</span>;
  return <TenantSwitch tenant={tenant} />;
}

function TenantSwitch({ tenant }: { tenant: string | undefined }) {
  const tenants = useQuery('tenants:switch', (signal) =>
    api<{ tenants: Tenant[] }>('/admin/tenants?limit=200', { signal }),
  );
  const slugs = tenants.data?.tenants.map((each) => each.slug) ?? [];
  const all = tenant !== undefined && !slugs.includes(tenant) ? [tenant, ...slugs] : slugs;
  return (
    <select
      class="tenant-switch"
      aria-label="Tenant"
      value={tenant ?? ''}
      onChange={(event) => {
        const slug = (event.target as HTMLSelectElement).value;
        if (slug === '') return navigate('/tenants');
        chooseTenant(slug);
        navigate('/');
      }}
    >
      <option value="">All tenants</option>
      {all.map((slug) => (
        <option key={slug} value={slug}>
          {slug}
        </option>
      ))}
    </select>
  );
}

function LiveSign() {
  const state = useStore(live.state);
  const now = useNow();
  const [tone, text, title] =
    state.kind === 'live'
      ? ['done', 'Live', 'Changes appear within a second']
      : state.kind === 'behind'
        ? ['hold', `${state.seconds} s behind`, 'Events arrive late: the daemon is catching up']
        : state.kind === 'lost'
          ? [
              'fail',
              `Reconnecting · ${span(now - state.since)}`,
              'The connection was lost; nothing is missed when it is back',
            ]
          : ['wait', state.kind === 'off' ? 'Not live' : 'Connecting', ''];
  return (
    <span class={`live live-${tone}`} title={title} role="status">
      <span class="live-dot" aria-hidden="true" />
      <span class="live-text">{text}</span>
    </span>
  );
}

const nextTheme = { system: 'light', light: 'dark', dark: 'system' } as const;
const themeIcons = { system: 'auto', light: 'sun', dark: 'moon' } as const;

function ThemeButton() {
  const now = useStore(theme);
  const label = `Theme: ${now}. Switch to ${nextTheme[now]}.`;
  return (
    <button
      type="button"
      class="icon-button"
      aria-label={label}
      title={label}
      onClick={() => chooseTheme(nextTheme[now])}
    >
      <Icon name={themeIcons[now]} />
    </button>
  );
}

function AccountButton() {
  const [open, setOpen] = useState(false);
  const now = useStore(session);
  if (typeof now === 'string') return null;
  return (
    <div class="account">
      <button
        type="button"
        class="icon-button"
        aria-expanded={open}
        aria-label="Account"
        onClick={() => setOpen(!open)}
      >
        <Icon name="lock" />
      </button>
      {open && (
        <div class="popover">
          <p>
            Signed in with the key <strong>{now.key.name}</strong>
          </p>
          <p class="muted small">
            {now.operator ? 'Operator: may read every tenant' : `Scopes: ${now.key.scopes.join(', ')}`}
            {now.tenant_status === 'SUSPENDED' && '. The tenant is suspended: you may only read.'}
          </p>
          <button type="button" class="button" onClick={() => void signOut()}>
            Sign out
          </button>
        </div>
      )}
    </div>
  );
}
