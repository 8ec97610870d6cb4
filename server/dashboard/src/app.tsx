// Chooses the page for the address and the signed-in person.
import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { chosenTenant, sessionEnded } from './data/api.ts';
import { useHoldCount } from './data/jobs/holds.ts';
import { hrefOf, useClickNavigation, usePlace } from './data/router.ts';
import { readSession, session } from './data/session.ts';
import { useStore } from './data/store.ts';
import { CapacityPage } from './pages/admin/capacity.tsx';
import { KeysPage } from './pages/admin/keys.tsx';
import { SettingsPage } from './pages/admin/settings.tsx';
import { TenantsPage } from './pages/admin/tenants.tsx';
import { EventsPage } from './pages/events.tsx';
import { JobPage } from './pages/job.tsx';
import { JobsPage } from './pages/jobs.tsx';
import { OperationsPage } from './pages/operations.tsx';
import { OverviewPage } from './pages/overview.tsx';
import { QuestionsPage } from './pages/questions.tsx';
import { SchedulesPage } from './pages/schedules.tsx';
import { SignInPage } from './pages/sign-in.tsx';
import { TargetPage } from './pages/target.tsx';
import { TargetsPage } from './pages/targets.tsx';
import { WebhooksPage } from './pages/webhooks.tsx';
import { WorkersPage } from './pages/workers.tsx';
import { Empty, Waiting } from './parts/feedback.tsx';
import { Palette } from './parts/shell/palette.tsx';
import { Shell } from './parts/shell/shell.tsx';
import { Toasts } from './parts/shell/toasts.tsx';

export function App() {
  const now = useStore(session);
  const ended = useStore(sessionEnded);
  const tenant = useStore(chosenTenant);
  const { path } = usePlace();
  useEffect(() => {
    // The link in the terminal has its token after `#`, which browsers do not send to servers.
    if (location.pathname.endsWith('/sign-in') && location.hash.length > 1) session.set('nobody');
    else void readSession().catch(() => session.set('nobody'));
    document.addEventListener('click', useClickNavigation);
    return () => document.removeEventListener('click', useClickNavigation);
  }, []);
  const ready = typeof now !== 'string' && (!now.operator || tenant !== undefined);
  useHoldCount(ready && !ended);
  if (now === 'unknown') return null;
  // The description of the API is public; sending requests from it is not.
  if (now === 'nobody' && path === '/docs') return <PublicDocs />;
  if (now === 'nobody' || ended) return <SignInPage ended={ended} />;
  return (
    <>
      <Shell>
        <Page key={tenant} ready={ready} />
      </Shell>
      <Palette />
      <Toasts />
    </>
  );
}

function Page({ ready }: { ready: boolean }) {
  const { path } = usePlace();
  const [first = '', second, ...more] = path.slice(1).split('/');
  const id = second === undefined ? undefined : decode([second, ...more].join('/'));
  if (first === 'docs') return <Docs />;
  if (first === 'tenants' || !ready) return <TenantsPage slug={first === 'tenants' ? id : undefined} />;
  switch (first) {
    case '':
    case 'sign-in':
      return <OverviewPage />;
    case 'targets':
      return id === undefined ? <TargetsPage /> : <TargetPage key={id} id={id} />;
    case 'jobs':
      return id === undefined ? <JobsPage /> : <JobPage key={id} id={id} />;
    case 'workers':
      return <WorkersPage />;
    case 'questions':
      return <QuestionsPage />;
    case 'schedules':
      return <SchedulesPage />;
    case 'webhooks':
      return <WebhooksPage />;
    case 'events':
      return <EventsPage />;
    case 'capacity':
      return <CapacityPage />;
    case 'operations':
      return <OperationsPage />;
    case 'keys':
      return <KeysPage />;
    case 'settings':
      return <SettingsPage />;
    default:
      return (
        <Empty icon="search" title="There is no such page">
          <p>
            <a href="./">Back to the overview</a>
          </p>
        </Empty>
      );
  }
}

/** Loaded on first use, so that the first page stays small. */
function Docs() {
  const [Loaded, setLoaded] = useState<{ page: ComponentType }>();
  useEffect(() => void import('./pages/docs.tsx').then(({ default: page }) => setLoaded({ page })), []);
  return Loaded === undefined ? <Waiting rows={8} /> : <Loaded.page />;
}

function PublicDocs() {
  return (
    <main id="main" class="main main-alone">
      <p>
        <a href={hrefOf('/')}>Sign in to Leasehold</a>
      </p>
      <Docs />
    </main>
  );
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
