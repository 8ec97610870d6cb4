// Limits of the platform, and limits that every setting and request shares.

/** The maximum delay of setTimeout: a longer one fires at once. */
export const maxTimerMs = 2 ** 31 - 1;

/** The maximum of an `integer` column. */
export const maxInt4 = 2 ** 31 - 1;

/** The maximum of a `bigint` column. */
export const maxInt8 = '9223372036854775807';

/** A thousand years. Longer durations would overflow the arithmetic of timestamps. */
export const maxSeconds = 31_536_000_000;

/** Ids that sort before and after every other id. */
export const firstUuid = '00000000-0000-0000-0000-000000000000';
export const lastUuid = 'ffffffff-ffff-ffff-ffff-ffffffffffff';
