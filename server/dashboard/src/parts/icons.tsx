// Icons as paths in a 16-pixel square, drawn with the colour of the text.
const paths = {
  overview: 'M2 8.5 8 3l6 5.5M4 7.5V13h8V7.5',
  targets: 'M2 4h12M2 8h12M2 12h12M5 3v2M9 7v2M6.5 11v2',
  jobs: 'M3 3h10v3H3zM3 8.5h10M3 12h7',
  workers: 'M3 3h10v5H3zM3 10.5h10V13H3zM5 5.5h2M5 11.8h.1',
  schedules: 'M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2M8 5v3.2l2.2 1.6',
  webhooks: 'M2.5 8h7M7 4.5 10.5 8 7 11.5M13 3.5v9',
  events: 'M2 8h3l1.8-4.5L9.5 12l1.7-4H14',
  capacity: 'M2.5 13V9M6.2 13V5.5M9.8 13V8M13.5 13V3',
  operations: 'M2.5 4.5h6M2.5 8h6M2.5 11.5h4M10 11l1.6 1.6L14 9.5',
  keys: 'M10.2 2.8a3 3 0 1 1-2 5.2L3 13.2V11M5 11.2l1.4 1.4M10.6 5.4h.1',
  tenants: 'M2.5 13.5v-9L7 2.5v11M7 6h6.5v7.5M4.7 6.5h.1M4.7 9.5h.1M10.2 8.8h.1M10.2 11.2h.1M1.5 13.5h13',
  settings: 'M2 5h7M12 5h2M2 11h2M7 11h7M10.5 3.5v3M5.5 9.5v3',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.4 10.4 14 14',
  sun: 'M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1.4M8 13.1v1.4M1.5 8h1.4M13.1 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1',
  moon: 'M13 9.6A5.5 5.5 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6',
  auto: 'M8 2.2a5.8 5.8 0 1 0 0 11.6zM8 2.2a5.8 5.8 0 0 1 0 11.6',
  more: 'M3.5 8h.1M8 8h.1M12.5 8h.1',
  close: 'M4 4l8 8M12 4l-8 8',
  resume: 'M5 3.5v9l7-4.5z',
  resolve: 'M3 8.5 6.5 12 13 4.5',
  skip: 'M3 4v8l5-4zM8.5 4v8l5-4z',
  cancel: 'M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2M4.2 4.2l7.6 7.6',
  pause: 'M5.2 3.5v9M10.8 3.5v9',
  canary: 'M2.5 8h5M5.2 5.2 8 8l-2.8 2.8M10.5 3v10M13.5 3v10',
  api: 'M5 3.5 2 8l3 4.5M11 3.5 14 8l-3 4.5M9 3 7 13',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  again: 'M12.8 6.5A5 5 0 1 0 13 9.2M13.2 3v3.6H9.6',
  down: 'M8 2.5v8M4.5 7.5 8 11l3.5-3.5M3 13.5h10',
  chevron: 'M6 3.5 10.5 8 6 12.5',
  lock: 'M4 7.2h8v6H4zM5.8 7V5a2.2 2.2 0 0 1 4.4 0v2',
  question: 'M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.3-1 .8-1 1.5M8 12.2h.1',
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={paths[name]} />
    </svg>
  );
}
