// The job of W8 and W9. Its result is when its handler started, on the clock that all processes of the machine share.
import { defineJob } from 'leasehold';

export const noop = defineJob({ type: 'noop', run: () => ({ startedAt: Number(process.hrtime.bigint() / 1000n) }) });
