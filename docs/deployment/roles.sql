-- Two roles with least privileges. Run once as the owner of the database, before the first start:
--   psql -d leasehold -v migrator_password=… -v daemon_password=… -f docs/deployment/roles.sql
--
-- leasehold_migrator creates and changes tables, and a role for each tenant: `leasehold migrate`,
-- `leasehold tenants create|delete`. Without createrole tenants have no roles of their own (TENANT_ROLES).
-- leasehold_daemon reads and writes rows, and nothing else: DATABASE_URL of the daemons.

create role leasehold_migrator login createrole password :'migrator_password';
create role leasehold_daemon login password :'daemon_password';

select current_database() as database \gset
revoke all on database :"database" from public;
grant connect, create on database :"database" to leasehold_migrator;
grant connect on database :"database" to leasehold_daemon;

-- What the migrator will create: the control schema and one schema for each tenant.
alter default privileges for role leasehold_migrator grant usage on schemas to leasehold_daemon;
alter default privileges for role leasehold_migrator grant select, insert, update, delete on tables to leasehold_daemon;
alter default privileges for role leasehold_migrator grant usage, select on sequences to leasehold_daemon;
