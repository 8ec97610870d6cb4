import { expect, it } from 'vitest';
import { createApiKey, revokeApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { createSignInLink } from '../../server/tenants/api-keys/sessions.ts';
import { describeInBrowser, openDashboard, signIn, useBrowser } from '../support/browser.ts';
import { fastSettings, startDaemon } from '../support/daemon/daemon.ts';
import { addTenant } from '../support/postgres/database.ts';

const context = useBrowser();

describeInBrowser('signing in', () => {
  it('refuses a wrong key, accepts a right one, and does not store it in the page', async () => {
    const { page, browserContext, key } = await openDashboard(context, { signIn: false });
    await page.getByLabel('API key').fill('lh_0000000000000000_wrong');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').getByText('This key is not valid').waitFor();

    await signIn(page, key);
    await page.getByRole('heading', { name: 'Needs attention', exact: true }).waitFor();
    const stored = String(await page.evaluate('JSON.stringify([localStorage, sessionStorage, document.cookie])'));
    expect(stored).not.toContain(key.slice(0, 10));
    const [cookie] = await browserContext.cookies();
    expect(cookie).toMatchObject({ name: 'leasehold_session', httpOnly: true, sameSite: 'Strict' });
    expect(cookie?.value).not.toContain(key.slice(3, 19));
  });

  it('opens with a one-time link, once, on any daemon, also in a browser of the POSIX locale', async () => {
    const { page, daemon, key, browserContext } = await openDashboard(context, { signIn: false });
    await page.addInitScript(
      "Object.defineProperty(Navigator.prototype, 'language', { get: () => 'en-US@posix', configurable: true })",
    );
    const link = await createSignInLink(context.db, key);
    await page.goto(`${daemon.url}/sign-in#${link}`);
    await page.getByRole('heading', { name: 'Needs attention', exact: true }).waitFor();
    expect(page.url()).toBe(`${daemon.url}/`);

    const other = await startDaemon(context, { dashboardDir: context.dashboardDir });
    const [cookie] = await browserContext.cookies();
    const answer = await fetch(`${other.url}/api/session`, {
      headers: { cookie: `leasehold_session=${cookie?.value}` },
    });
    expect(await answer.json()).toMatchObject({ session: { tenant: context.tenant.slug, operator: false } });

    await browserContext.clearCookies();
    await page.goto(`${daemon.url}/sign-in#${link}`);
    await page.reload();
    await page.goto(`${daemon.url}/sign-in?again#${link}`);
    await page.getByRole('alert').getByText('was used already').waitFor();
  });

  it('ends with its key', async () => {
    const { page, daemon } = await openDashboard(context, { signIn: false });
    const key = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'leaver', scopes: ['read'] });
    await signIn(page, key.text);
    await revokeApiKey(context.db, context.tenant.id, key.id);
    await page.goto(`${daemon.url}/jobs`);
    await page.getByText('Your session has ended').or(page.getByLabel('API key')).first().waitFor();
  });

  it('shows no button that would be refused', async () => {
    const { page, api, goTo } = await openDashboard(context, { scopes: ['read'] });
    await api('POST', '/api/targets/readonly-1/jobs', { type: 'demo.fail', payload: { recoverable: false } });
    await page.getByText('failing on purpose').first().waitFor();
    for (const path of ['/', '/targets', '/jobs', '/targets/readonly-1']) {
      await goTo(path);
      await page.getByText('readonly-1').first().waitFor();
      expect(await page.getByRole('button', { name: /^(Resume|Resolve|Skip|Cancel|Pause|Retry)( |$)/ }).count()).toBe(
        0,
      );
    }
    expect(await page.getByRole('link', { name: 'Keys' }).count()).toBe(0);
  });

  it('refuses requests of other sites that carry the cookie', async () => {
    const { daemon, browserContext, api } = await openDashboard(context);
    const job = await api('POST', '/api/jobs', { type: 'demo.sleep', payload: { seconds: 600 } });
    const [cookie] = await browserContext.cookies();
    const send = (headers: Record<string, string>) =>
      fetch(`${daemon.url}/api/jobs/${job.id}/cancel`, {
        method: 'POST',
        headers: { cookie: `leasehold_session=${cookie?.value}`, ...headers },
      });
    expect((await send({ origin: 'https://evil.example' })).status).toBe(403);
    expect((await send({ 'sec-fetch-site': 'cross-site', origin: daemon.url })).status).toBe(403);
    expect((await send({})).status).toBe(403);
    expect((await send({ origin: daemon.url })).status).toBeLessThan(300);
  });

  it("lets an operator read every tenant, and a tenant's key only its own", async () => {
    const { page, daemon, browserContext } = await openDashboard(context, { signIn: false });
    const { tenant: other } = await addTenant(context.db, 'globex');
    await daemon.registry.refresh();
    await daemon.enqueue(other, [{ type: 'demo.echo', payload: {}, targetId: 'globex-1' }], 'test');
    await signIn(page, fastSettings.ADMIN_API_KEY as string);
    await page.getByRole('heading', { name: 'Tenants', exact: true }).waitFor();
    await page.getByLabel('Tenant', { exact: true }).selectOption('globex');
    await page.getByRole('link', { name: 'Targets' }).first().click();
    await page.getByRole('link', { name: 'globex-1' }).waitFor();

    const operator = (await browserContext.cookies())[0]?.value;
    const read = (headers: Record<string, string>) => fetch(`${daemon.url}/api/jobs`, { headers });
    expect((await read({ cookie: `leasehold_session=${operator}` })).status).toBe(403);
    await page.getByRole('link', { name: 'Settings' }).first().click();
    await page.getByText('TENANT_CONCURRENCY').waitFor();
    await page.getByRole('button', { name: 'Change concurrency' }).click();
    const dialog = page.getByRole('dialog', { name: 'Change concurrency' });
    await dialog.getByLabel('Value').fill('many');
    await dialog.getByRole('button', { name: 'Save' }).click();
    await dialog.getByRole('alert').getByText('This is not JSON').waitFor();
    await dialog.getByLabel('Value').fill('7');
    await dialog.getByRole('button', { name: 'Save' }).click();
    await page.getByText('set for this tenant').waitFor();
    await page.goto(`${daemon.url}/tenants`);
    await page.getByRole('button', { name: 'Suspend globex' }).click();
    await page.getByRole('button', { name: 'Activate globex' }).waitFor();
    await page.getByRole('button', { name: 'Undo' }).click();
    await page.getByRole('button', { name: 'Suspend globex' }).waitFor();
    // The header is a session's alone: a key names its tenant by itself.
    const admin = `Bearer ${fastSettings.ADMIN_API_KEY}`;
    expect((await read({ authorization: admin, 'x-leasehold-tenant': 'globex' })).status).toBe(403);
  });
});
