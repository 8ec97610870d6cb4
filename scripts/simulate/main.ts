// `npm run simulate -- --tenants 1000 --rate 35000 --seconds 2 --largest 0.5`: how many nodes and daemons that needs.
import { parseArgs } from 'node:util';
import { defaults, sizeOf } from './cluster-size.ts';

const { values } = parseArgs({
  options: {
    tenants: { type: 'string', default: '100' },
    rate: { type: 'string', default: '1000' },
    seconds: { type: 'string', default: '1' },
    largest: { type: 'string', default: '0.5' },
    lanes: { type: 'boolean', default: false },
    days: { type: 'string', default: '7' },
    cores: { type: 'string', default: String(defaults.node.cores) },
    slots: { type: 'string', default: String(defaults.slotsPerDaemon) },
  },
});

const number = (name: 'tenants' | 'rate' | 'seconds' | 'largest' | 'days' | 'cores' | 'slots', max = 1e12) => {
  const value = Number(values[name]);
  if (!(value >= 0 && value <= max)) {
    console.error(`--${name} must be a number from 0 to ${max}, not ${values[name]}`);
    process.exit(2);
  }
  return value;
};

const load = {
  tenants: number('tenants'),
  jobsPerSecond: number('rate'),
  secondsPerJob: number('seconds'),
  topShare: number('largest', 1),
  lanes: values.lanes,
  retentionDays: number('days'),
};
const node = { ...defaults.node, cores: Math.max(1, number('cores')) };
const answer = sizeOf(load, { ...defaults, node, slotsPerDaemon: Math.max(1, number('slots')) });
const percent = (value: number) => `${Math.round(100 * value)} %`;
const gb = (bytes: number) => `${(bytes / 1e9).toFixed(bytes < 1e10 ? 2 : 0)} GB`;

console.log(
  `${answer.step}: ${answer.nodes} database node${answer.nodes > 1 ? 's' : ''}, ${answer.daemons} daemons${answer.cells > 1 ? `, ${answer.cells} cells` : ''}`,
);
console.log(
  `limited by ${answer.limit}; of what is planned for each node: ${Object.entries(answer.used)
    .map(([name, used]) => `${name} ${percent(used)}`)
    .join(', ')}`,
);
console.log(
  `write-ahead log ${(answer.walBytesPerSecond / 1e6).toFixed(1)} MB/s, ${gb(answer.storedBytes)} stored, ${answer.connections} connections`,
);
if (!answer.topTenantFits) console.log('the largest tenant does not fit on one node: split it into several tenants');
