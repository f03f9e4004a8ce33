-- The ground that every later file stands on: the schema, the one source of ever-rising numbers, and the one way to
-- put a table under row-level security.

create schema compass;
revoke all on schema compass from public;
grant usage on schema compass to ${app}, ${system}, ${provision}, ${tenant};

-- number() is what positions, epochs, claims, generations, incarnations and command numbers draw from [D9]. Microseconds,
-- because a hot channel takes several positions per millisecond; plus a minute for every promotion of the database (the
-- first eight digits of a WAL file name are the timeline), so that a standby whose clock is behind cannot repeat a number
-- that the lost primary gave out. It is never compared with a lease: those use the plain clock.
-- It pins no search_path and needs none, its names were resolved when it was made; with one it would not be inlined, and a
-- call is most of what it costs.
create function compass.number() returns bigint
    language sql volatile parallel unsafe
return (extract(epoch from clock_timestamp()) * 1000000)::bigint
    + ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint * 60000000;
revoke all on function compass.number() from public;
grant execute on function compass.number() to ${app}, ${system}, ${provision};

create function compass.unix_ms() returns bigint
    language sql volatile parallel unsafe
return (extract(epoch from clock_timestamp()) * 1000)::bigint;
revoke all on function compass.unix_ms() from public;
grant execute on function compass.unix_ms() to ${app}, ${system}, ${provision};

-- protect() gives a tenant-owned table its canonical shape: ENABLE and FORCE, the tenant's rows for app, everything for
-- the named loops of system, and, where asked, everything for provision. The owner is named beside app, so that SECURITY
-- DEFINER functions are scoped by the same setting as their caller, and owner without a setting sees nothing (REQ-110).
-- One scalar sub-select: read once per statement, NULL and therefore no row where the setting was never made or was reset
-- to the empty string.
create procedure compass.protect(rel regclass, provisioned boolean default false, scope name default 'tenant_id')
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    mine constant text := format('%I = (select nullif(current_setting(''compass.tenant_id'', true), ''''))', scope);
begin
    execute format('alter table %s enable row level security', rel);
    execute format('alter table %s force row level security', rel);
    execute format('create policy app_scope on %s to ${app}, ${owner} using (%s) with check (%s)', rel, mine, mine);
    execute format('create policy system_all on %s to ${system} using (true) with check (true)', rel);
    execute format('grant select on %s to ${system}', rel);
    if provisioned then
        execute format('create policy provision_all on %s to ${provision} using (true) with check (true)', rel);
        execute format('grant select, insert, update, delete on %s to ${provision}', rel);
    end if;
end
$$;
revoke all on procedure compass.protect(regclass, boolean, name) from public;
