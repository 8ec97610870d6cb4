// Asks a Postgres that may be starting, recovering, wedged or somebody else's.
import pg from 'pg';
import { sqlState } from '../database/database.ts';

export type Answer = 'yes' | 'no' | 'denied';

/** Asks until there is an answer, the server is gone, or the time is over. */
export async function answers(url: string, gone: () => Promise<boolean>, withinMs: number): Promise<Answer> {
  const deadline = performance.now() + withinMs;
  while (performance.now() < deadline && !(await gone())) {
    const answer = await ask(url);
    if (answer !== 'no') return (await gone()) ? 'no' : answer;
    await new Promise((wake) => setTimeout(wake, 50));
  }
  return 'no';
}

async function ask(url: string): Promise<Answer> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000, query_timeout: 5_000 });
  client.on('error', () => {});
  try {
    await client.connect();
    await client.query('select 1');
    return 'yes';
  } catch (error) {
    return sqlState(error)?.startsWith('28') ? 'denied' : 'no';
  } finally {
    await client.end().catch(() => {});
  }
}

/** Makes the database unless it is there. */
export async function createDatabase(url: string, name: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  try {
    await client.connect();
    await client.query(`create database ${name}`);
  } catch (error) {
    const exists = sqlState(error) === '42P04';
    if (!exists) throw error;
  } finally {
    await client.end();
  }
}
