// Runs in the daemon: `HANDLERS=./jobs npx leaseholdd`. The routes import its type only.
import { defineJob, z } from 'leasehold';

export const buildReport = defineJob({
  type: 'report.build',
  payload: z.object({ customer: z.string().min(1), pages: z.int().min(1).max(1000).default(5) }),
  retry: { attempts: 3 },
  async run({ payload, progress, sleep }) {
    for (let page = 1; page <= payload.pages; page++) {
      await sleep(20);
      progress((page * 100) / payload.pages, `page ${page} of ${payload.pages}`);
    }
    return { file: `${payload.customer}.pdf`, pages: payload.pages };
  },
});
