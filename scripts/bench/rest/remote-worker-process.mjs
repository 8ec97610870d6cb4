// The worker of W12: answers how many jobs it has finished.
import { LeaseholdWorker } from 'leasehold/worker';

let done = 0;
const { DAEMON_URL: url, DAEMON_KEY: key, SLOTS } = process.env;
const worker = new LeaseholdWorker({ url, key, queue: 'bench', concurrency: Number(SLOTS) }, () => {
  done += 1;
});
process.on('message', () => process.send({ done }));
process.on('disconnect', () => process.exit(0));
process.send('up');
await worker.run();
