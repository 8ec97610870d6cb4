// A migrating process for tests: url, schema name and, if not the product's own, the folder.
import { Database } from '../../../server/database/database.ts';
import { migrateControl, migrateTenant } from '../../../server/database/migrations/migrate.ts';
import { createLogger } from '../../../server/kernel/logger.ts';

const [url = '', schemaName = '', directory] = process.argv.slice(2);
const logger = createLogger('silent');
const db = new Database({ url, poolMax: 2, logger });
const control = await migrateControl(db, logger);
const tenant = await migrateTenant(db, schemaName, directory ? { directory } : {});
await db.close();
const applied = [...control.map((name) => `leasehold/${name}`), ...tenant.map((name) => `${schemaName}/${name}`)];
process.stdout.write(JSON.stringify(applied));
