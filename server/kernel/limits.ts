// Bounds that Node and Postgres set.

/** The longest delay of setTimeout: a longer one fires at once. */
export const maxTimerMs = 2 ** 31 - 1;

/** The largest value of an `integer` column. */
export const maxInt4 = 2 ** 31 - 1;

/** The largest value of a `bigint` column, as text: it does not fit a number. */
export const maxInt8 = '9223372036854775807';

/** Sort before and after every other id. */
export const firstUuid = '00000000-0000-0000-0000-000000000000';
export const lastUuid = 'ffffffff-ffff-ffff-ffff-ffffffffffff';
