import { expect, it } from 'vitest';
import { useControl } from '../../../../support/http/control.ts';
import { addJobs, claim } from '../../../../support/jobs.ts';

const control = useControl();

it('answers with the reasons and with the addresses of actions that release them', async () => {
  const [first, second] = await addJobs(control, [{ targetId: 'lane' }, { targetId: 'lane' }]);
  await control.db.query(
    `insert into leasehold.daemons (id, incarnation, host, pid, version, job_types, last_beat_at)
     values ('d', gen_random_uuid(), 'h', 1, '0', '{demo.echo}', now() + interval '1 hour')`,
  );
  const free = await control.get(`/api/jobs/${first?.id}/why`);
  expect(free.body).toEqual({
    job_id: first?.id,
    status: 'QUEUED',
    running: false,
    claimable: true,
    position: 1,
    reasons: [],
  });
  await control.post('/api/targets/lane/pause', { author: 'ann', reason: 'flood' });
  await control.post(`/api/jobs/${first?.id}/pause`);
  const why = await control.get(`/api/targets/lane/jobs/${second?.id}/why/`);
  expect(why.status).toBe(200);
  expect(why.body.reasons.map((r: { code: string }) => r.code)).toEqual(['TARGET_PAUSED', 'TARGET_HELD']);
  for (const { release } of why.body.reasons) {
    const { method, path } = release.actions.at(-1);
    expect((await control.send(method, path)).status).toBe(200);
  }
  expect((await control.get(`/api/jobs/${second?.id}/why`)).body).toMatchObject({ claimable: true, reasons: [] });
  expect((await claim(control)).jobs.map((j) => j.id)).toEqual([second?.id]);
  expect((await control.get(`/api/jobs/${second?.id}/why`)).body).toMatchObject({ running: true, reasons: [] });
});

it('is 404 for jobs that do not exist', async () => {
  for (const path of ['/api/jobs/x/why', '/api/jobs/00000000-0000-7000-8000-000000000000/why']) {
    expect((await control.get(path)).status).toBe(404);
  }
});
