-- compass:serves 0007
-- Postgres plans with the statistics of a whole table, whatever row security hides of it, and shows its estimates to whoever
-- may ask: a text that is frequent in other tenants could be told from one that nobody wrote. None are kept of what people
-- write. Lookups by these columns go through unique keys, which need none. A table that was analyzed before keeps what it
-- had; a superuser deletes that from pg_statistic.
alter table compass.tenants alter column slug set statistics 0, alter column display_name set statistics 0,
    alter column limits set statistics 0;
alter table compass.accounts alter column handle set statistics 0, alter column display_name set statistics 0;
alter table compass.audit_log alter column actor set statistics 0, alter column detail set statistics 0;
alter table compass.channels alter column name set statistics 0;
alter table compass.messages alter column blocks set statistics 0, alter column mentions set statistics 0,
    alter column client_id set statistics 0;
alter table compass.session_commands alter column text set statistics 0;
alter table compass.dead_letters alter column reason set statistics 0;
