import { expect, it } from 'vitest';
import { PathTable } from '../../../server/http/mount.ts';

const paths = new PathTable<string>();
for (const path of [
  '/livez',
  '/api/jobs',
  '/api/jobs/batch',
  '/api/jobs/{job_id}',
  '/api/jobs/{job_id}/cancel',
  '/api/targets/{target_id}/jobs/{job_id}',
  '/api/targets/all/pause',
]) {
  paths.add(path, path);
}

it.each([
  ['/livez', '/livez', {}],
  ['/api/jobs/', '/api/jobs', {}],
  ['/api/jobs/batch', '/api/jobs/batch', {}],
  ['/api/jobs/7', '/api/jobs/{job_id}', { job_id: '7' }],
  ['/api/jobs/batch/cancel', '/api/jobs/{job_id}/cancel', { job_id: 'batch' }],
  // A literal that leads nowhere is read as a parameter.
  ['/api/targets/all/jobs/a%2Fb', '/api/targets/{target_id}/jobs/{job_id}', { target_id: 'all', job_id: 'a/b' }],
])('finds %s', (path, value, params) => {
  expect(paths.find(path)).toEqual({ value, params });
});

it.each(['/', '/Livez', '/livez/x', '/api', '/api/jobs//cancel', '/api/jobs//', '/api/jobs/7/cancel/now', '/toString'])(
  'finds nothing for %s',
  (path) => {
    expect(paths.find(path)).toBeUndefined();
  },
);

it('throws for a parameter that cannot be decoded', () => {
  expect(() => paths.find('/api/jobs/%zz')).toThrow(URIError);
});
