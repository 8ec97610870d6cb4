// The pages of the navigation, and who may open them.
import { isOperator, may } from '../../data/session.ts';
import type { IconName } from '../icons.tsx';

export interface NavEntry {
  to: string;
  label: string;
  icon: IconName;
  shown?: () => boolean;
}

export const entries: readonly NavEntry[] = [
  { to: '/', label: 'Overview', icon: 'overview' },
  { to: '/targets', label: 'Targets', icon: 'targets' },
  { to: '/jobs', label: 'Jobs', icon: 'jobs' },
  { to: '/questions', label: 'Questions', icon: 'question' },
  { to: '/workers', label: 'Workers', icon: 'workers' },
  { to: '/schedules', label: 'Schedules', icon: 'schedules' },
  { to: '/webhooks', label: 'Webhooks', icon: 'webhooks' },
  { to: '/events', label: 'Events', icon: 'events' },
  { to: '/operations', label: 'Operations', icon: 'operations' },
  { to: '/capacity', label: 'Capacity', icon: 'capacity' },
  { to: '/keys', label: 'Keys', icon: 'keys', shown: () => may('admin') },
  { to: '/settings', label: 'Settings', icon: 'settings', shown: isOperator },
  { to: '/tenants', label: 'Tenants', icon: 'tenants', shown: isOperator },
  { to: '/docs', label: 'API', icon: 'api' },
];
