// One client for all routes. It uses fetch only, so it also runs in edge functions. The key stays on the server.
import { LeaseholdClient } from 'leasehold/client';

export const client = new LeaseholdClient({
  url: process.env.LEASEHOLD_URL ?? 'http://127.0.0.1:8080',
  apiKey: () => process.env.LEASEHOLD_KEY ?? '',
});
