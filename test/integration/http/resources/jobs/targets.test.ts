import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { listLanes } from '../../../../../server/jobs/lanes/read-lanes.ts';
import { resumeDueTargets } from '../../../../../server/jobs/lanes/target.ts';
import { useControl } from '../../../../support/http/control.ts';
import { addJob, addJobs, claim, finish } from '../../../../support/jobs.ts';

const control = useControl();

describe('targets', () => {
  it('appear on first use and show their lane', async () => {
    const [a, b, c] = await addJobs(control, [
      { targetId: 'lane' },
      { targetId: 'lane' },
      { targetId: 'lane', priority: 'URGENT' },
    ]);
    const shown = await control.get('/api/targets/lane/');
    expect(shown.status).toBe(200);
    expect(shown.body).toMatchObject({ id: 'lane', paused: false, hold: null, waiting: 2, waiting_exact: true });
    expect(shown.body.head.id).toBe(a?.id);
    expect(shown.body.next.map((j: { id: string }) => j.id)).toEqual([c?.id, b?.id]);
  });

  it('show which job holds them, since when and why', async () => {
    const job = await addJob(control, { targetId: 'held' });
    const claimed = (await claim(control)).jobs.find((j) => j.id === job.id);
    await finish(control, claimed!, { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'disk full' } });
    const { hold } = (await control.get('/api/targets/held')).body;
    expect(hold).toMatchObject({ by: 'job', job_id: job.id, detail: expect.stringContaining('disk full') });
    expect(hold.since).toMatch(/Z$/);
  });

  it('show the wait of a waiting head, as lists of jobs and the job itself do', async () => {
    const { db, schema } = control;
    const until = '2090-01-01T00:00:00.000000Z';
    const waits = {
      sleeps: { kind: 'sleep', step: 'nap', until },
      asks: { kind: 'question', step: 'ok', until, question: randomUUID() },
      collects: { kind: 'children', step: 'all', jobs: 3 },
    } as const;
    for (const [targetId, waiting] of Object.entries(waits)) {
      const { id } = await addJob(control, { targetId });
      const job = (await claim(control)).jobs.find((claimed) => claimed.id === id);
      await finish(control, job!, { kind: 'suspend', waiting, leftMs: 1e9 });
      if (waiting.kind === 'question') {
        await db.query(
          `insert into ${schema}.questions (id, job_id, step, title, schema, expires_at)
           values ($1, $2, 'ok', 'Ship it?', '{}', $3)`,
          [waiting.question, id, until],
        );
      }
      if (waiting.kind === 'children') {
        await db.query(
          `insert into ${schema}.dependencies (job_id, after_id, step, state)
           select $1, gen_random_uuid(), 'all', state from unnest('{succeeded,open,gated}'::text[]) as state`,
          [id],
        );
      }
    }
    const shown = {
      sleeps: waits.sleeps,
      asks: { ...waits.asks, title: 'Ship it?' },
      collects: { ...waits.collects, unfinished: 2 },
    };
    const { targets } = (await control.get('/api/targets')).body;
    const { lanes } = await listLanes(db, schema, { selection: 'all', after: '', limit: 100 });
    const { jobs } = (await control.get('/api/jobs?status=WAITING')).body;
    for (const [id, waiting] of Object.entries(shown)) {
      const listed = targets.find((target: { id: string }) => target.id === id);
      expect(listed.head).toMatchObject({ status: 'WAITING', waiting });
      expect(lanes.find(({ target }) => target.id === id)?.head?.waiting).toEqual(waiting);
      expect((await control.get(`/api/targets/${id}`)).body.head.waiting).toEqual(waiting);
      const [inList] = jobs.filter((job: { target_id: string }) => job.target_id === id);
      expect(inList.waiting).toEqual(waiting);
      expect((await control.get(`/api/jobs/${inList.id}`)).body.waiting).toEqual(waiting);
    }
  });

  it('are paused with reason, author and end time, and resumed', async () => {
    const job = await addJob(control, { targetId: 'paused' });
    const body = { reason: 'maintenance', author: 'ann', until: '2199-01-01T00:00:00Z' };
    for (let i = 0; i < 2; i++) {
      const paused = await control.post('/api/targets/paused/pause/', body);
      expect(paused.status).toBe(200);
      expect(paused.body).toMatchObject({
        paused: true,
        paused_by: 'ann',
        pause_reason: 'maintenance',
        paused_until: '2199-01-01T00:00:00.000000Z',
        head: null,
        hold: { by: 'pause', detail: 'Paused by ann: maintenance' },
        waiting: 1,
      });
    }
    expect((await claim(control)).jobs.map((j) => j.id)).not.toContain(job.id);
    const list = await control.get('/api/targets?paused=true');
    expect(list.body.targets.map((t: { id: string }) => t.id)).toEqual(['paused']);
    const resumed = await control.post('/api/targets/paused/resume');
    expect(resumed.body).toMatchObject({ paused: false, paused_by: null, head: { id: job.id } });
    expect((await control.post('/api/targets/paused/resume')).status).toBe(200);
    expect((await claim(control)).jobs.map((j) => j.id)).toContain(job.id);
  });

  it('can be paused before they exist; the pause ends at its end time', async () => {
    await control.post('/api/targets/early/pause', { until: '2001-01-01T00:00:00Z' });
    const job = await addJob(control, { targetId: 'early' });
    expect((await claim(control)).jobs.map((j) => j.id)).not.toContain(job.id);
    await resumeDueTargets(control.db, control.schema, 'sweeper:test');
    expect((await claim(control)).jobs.map((j) => j.id)).toContain(job.id);
  });

  it('have labels, which can be replaced and merged', async () => {
    const put = await control.send('PUT', '/api/targets/labelled', { body: { labels: { room: '1', floor: '2' } } });
    expect(put.status).toBe(200);
    const patched = await Promise.all([
      control.send('PATCH', '/api/targets/labelled', { body: { labels: { room: null } } }),
      control.send('PATCH', '/api/targets/labelled', { body: { labels: { site: 'b' } } }),
    ]);
    expect(patched.map((a) => a.status)).toEqual([200, 200]);
    expect((await control.get('/api/targets/labelled')).body.labels).toEqual({ floor: '2', site: 'b' });
    const many = Object.fromEntries(Array.from({ length: 60 }, (_, n) => [`l${n}`, 'x']));
    for (const method of ['PUT', 'PATCH']) {
      const answer = await control.send(method, '/api/targets/labelled', { body: { labels: many } });
      expect(answer.status).toBe(400);
      expect(answer.body.field).toBe('labels');
    }
    expect((await control.send('PATCH', '/api/targets/nowhere', { body: { labels: {} } })).status).toBe(404);
  });

  it('are listed by id, page by page', async () => {
    await addJobs(
      control,
      ['list-c', 'list-a', 'list-b'].map((targetId) => ({ targetId })),
    );
    const seen: string[] = [];
    let cursor = '';
    do {
      const page = await control.get(`/api/targets?limit=2${cursor && `&cursor=${cursor}`}`);
      seen.push(...page.body.targets.map((t: { id: string }) => t.id));
      cursor = page.body.next_cursor ?? '';
    } while (cursor);
    expect(seen).toEqual([...new Set(seen)].sort());
    expect(seen).toEqual(expect.arrayContaining(['list-a', 'list-b', 'list-c']));
  });

  it.each(['nobody', '..', '%01', 'x'.repeat(500)])('%j is not found', async (id) => {
    expect((await control.get(`/api/targets/${encodeURIComponent(id)}`)).status).toBe(404);
    expect((await control.post(`/api/targets/${encodeURIComponent(id)}/resume`)).status).toBe(404);
  });

  it('with a name that no address can contain are refused', async () => {
    for (const id of ['%07', encodeURIComponent('x'.repeat(201))]) {
      const answer = await control.post(`/api/targets/${id}/pause`);
      expect(answer.status).toBe(400);
      expect(answer.body.field).toBe('target_id');
    }
  });
});
