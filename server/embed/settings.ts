// The settings of docs/configuration.md as types, for programs that embed Leasehold. They are written out, so that the
// compilers of these programs need not read the table of settings; a test compares both.

/** `{ leaseSeconds: 30 }` is `LEASE_SECONDS=30`. Settings that only concern the program `leaseholdd` are left out. */
export interface LeaseholdSettings {
  listenDatabaseUrl?: string | undefined;
  databasePoolMax?: number | undefined;
  databaseTenantShare?: number | undefined;
  publicUrl?: string | undefined;
  logLevel?: 'info' | 'fatal' | 'error' | 'warn' | 'debug' | 'trace' | 'silent' | undefined;
  adminApiKey?: string | undefined;
  workerId?: string | undefined;
  workerConcurrency?: number | undefined;
  tenantConcurrency?: number | undefined;
  workerReservedShare?: number | undefined;
  heartbeatIntervalSeconds?: number | undefined;
  leaseSeconds?: number | undefined;
  staleLeaseGraceSeconds?: number | undefined;
  sweepIntervalSeconds?: number | undefined;
  pollIntervalSeconds?: number | undefined;
  loopStallSeconds?: number | undefined;
  claimSeconds?: number | undefined;
  claimWaitersMax?: number | undefined;
  claimWaitersPerTenant?: number | undefined;
  claimWaitersPerKey?: number | undefined;
  jobTimeoutSeconds?: number | undefined;
  cancelGraceSeconds?: number | undefined;
  unresponsiveHandlerMaxSeconds?: number | undefined;
  shutdownGracePeriodSeconds?: number | undefined;
  resumeDrainedJobs?: boolean | undefined;
  orphanAfterSeconds?: number | undefined;
  tokenLimit?: number | undefined;
  questionTimeoutSeconds?: number | undefined;
  resultLimitBytes?: number | undefined;
  requestMemoryBytes?: number | undefined;
  handlerThreads?: number | undefined;
  handlerThreadMemoryMb?: number | undefined;
  tenantRoles?: boolean | undefined;
  migrateConcurrency?: number | undefined;
  webhookAllowPrivate?: boolean | undefined;
  webhookConcurrency?: number | undefined;
  webhookTimeoutSeconds?: number | undefined;
  webhookMaxAttempts?: number | undefined;
  retentionStaleAfterSeconds?: number | undefined;
  retentionDeleteAfterSeconds?: number | undefined;
  retentionEventDays?: number | undefined;
  retentionReceivedEventDays?: number | undefined;
  streamReadersMax?: number | undefined;
  streamReadersPerTenant?: number | undefined;
  streamReadersPerKey?: number | undefined;
  streamBufferBytes?: number | undefined;
  streamPollSeconds?: number | undefined;
  streamPingSeconds?: number | undefined;
  metricsPerTenant?: boolean | undefined;
}
