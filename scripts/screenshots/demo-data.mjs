// A workshop of twenty machines as it might be on a working day: most run or wait, some failed, some are held by people.

export async function fillDemo(url, key) {
  const send = async (method, path, body = {}) => {
    const response = await fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === '' ? {} : JSON.parse(text);
  };
  const enqueue = (target, job) => send('POST', `/api/targets/${target}/jobs`, job);
  const machines = Array.from({ length: 20 }, (_, n) => `machine-${String(n + 1).padStart(2, '0')}`);
  for (const [n, id] of machines.entries()) {
    await send('PUT', `/api/targets/${id}`, {
      labels: { kind: n % 3 === 0 ? 'robot' : 'lathe', site: n % 2 === 0 ? 'Porto' : 'Lyon' },
    });
    for (let order = 0; order < 4; order++) {
      await enqueue(id, { type: 'demo.echo', payload: { order: 4700 + order, customer: { id: 42 + n } } });
    }
  }
  const pipelines = [];
  for (const id of ['machine-01', 'machine-02', 'machine-09', 'machine-14', 'machine-20']) {
    const pipeline = await enqueue(id, {
      type: 'demo.pipeline',
      payload: { items: 120, seconds: 40 },
      author: 'planner',
    });
    pipelines.push(pipeline);
    await enqueue(id, { type: 'demo.sleep', payload: { seconds: 30 } });
  }
  for (const id of ['machine-03', 'machine-07', 'machine-11']) {
    const payload = { times: 5, recoverable: false };
    await enqueue(id, { type: 'demo.fail', payload, max_attempts: 1, author: 'agent-7' });
    for (let n = 0; n < (id === 'machine-07' ? 30 : 4); n++) {
      const type = n % 2 === 0 ? 'demo.echo' : 'demo.pipeline';
      await enqueue(id, { type, priority: n === 1 ? 'HIGH' : 'NORMAL', payload: {} });
    }
  }
  await enqueue('machine-05', { type: 'demo.tokens', payload: { tokens: 5000 }, token_limit: 1500, author: 'agent-3' });
  const paused = await enqueue('machine-16', { type: 'demo.sleep', payload: { seconds: 600 }, author: 'planner' });
  await send('POST', `/api/jobs/${paused.id}/pause`, { reason: 'Waiting for a spare part', author: 'ann' });
  await enqueue('machine-04', {
    type: 'demo.approval',
    payload: { question: 'Update the firmware to 4.2?' },
    author: 'agent-2',
  });
  const until = new Date(Date.now() + 3_600_000).toISOString();
  await send('POST', '/api/targets/machine-18/pause', { reason: 'Maintenance window', author: 'ben', until });
  await enqueue('machine-18', { type: 'demo.echo', payload: {} });
  // Long enough for the failures to be there, and for some progress.
  await new Promise((resolve) => setTimeout(resolve, 6000));
  return { running: pipelines[0].id };
}
