// A process that owns an embedded Postgres: prints `ready <url>` or `refused <words>`; SIGTERM stops it.
import { startEmbeddedPostgres } from '../../../server/embedded-postgres/start.ts';
import { createLogger } from '../../../server/kernel/logger.ts';

const [dataDir = ''] = process.argv.slice(2);
// Registered before the start: a signal that comes early must not kill us.
const asked = new Promise((resolve) => process.once('SIGTERM', resolve));
const keepAlive = setInterval(() => {}, 60_000);
try {
  const postgres = await startEmbeddedPostgres({ dataDir, logger: createLogger('silent') });
  console.log(`ready ${postgres.url}`);
  await asked;
  await postgres.stop();
} catch (error) {
  console.log(`refused ${error instanceof Error ? error.message : error}`);
}
clearInterval(keepAlive);
