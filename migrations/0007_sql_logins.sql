-- Optional direct SQL for a tenant's own tools: read only, its own rows, told by session_user. A login is a member of the
-- group ${tenant} and of nothing else; whatever it sets or plants changes neither.

create table compass.sql_logins (
    tenant_id text not null references compass.tenants (id) on delete cascade,
    role_name name not null unique,
    primary key (tenant_id, role_name)
);
call compass.protect('compass.sql_logins', provisioned => true);

-- The table is under FORCE and its owner otherwise sees it only inside a tenant's scope; this one extra policy lets the look-up see
-- the row of the login itself, by session_user, which neither SET ROLE nor a definer's body can change.
create policy login_lookup on compass.sql_logins for select to ${owner} using (role_name = session_user);

create function compass.login_tenant() returns text
    language sql stable security definer parallel safe
    set search_path = pg_catalog, pg_temp
return (select l.tenant_id from compass.sql_logins l where l.role_name = session_user);
revoke all on function compass.login_tenant() from public;
grant execute on function compass.login_tenant() to ${tenant};

do $$
declare
    rel text;
begin
    foreach rel in array array['accounts', 'channels', 'channel_members', 'messages', 'asks', 'pins', 'turns'] loop
        execute format('create policy tenant_login on compass.%I for select to ${tenant} using (tenant_id = (select compass.login_tenant()))', rel);
        execute format('grant select on compass.%I to ${tenant}', rel);
    end loop;
end
$$;

-- purge_tenant() removes a tenant whole, on a deletion under the policy Delete. Only one that no stream carries: its worker
-- has then let go of it. It runs within the tenant's own scope, so that it cannot take a row of anybody else.
create function compass.purge_tenant(p_tenant text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    rel text;
begin
    perform set_config('compass.tenant_id', p_tenant, true);
    if exists (select from compass.placements p where p.tenant_id = p_tenant and p.stream is not null) then
        raise exception 'tenant is still carried by a stream' using errcode = 'CP004';
    end if;
    foreach rel in array array['session_bindings', 'agent_placements', 'dead_letters', 'delivery_attempts', 'owed_mentions', 'asks',
            'pins', 'messages', 'turns', 'delivery_cursors', 'channel_members', 'channels'] loop
        execute format('delete from compass.%I where tenant_id = $1', rel) using p_tenant;
    end loop;
    delete from compass.tenants t where t.id = p_tenant;
end
$$;
revoke all on function compass.purge_tenant(text) from public;
grant execute on function compass.purge_tenant(text) to ${provision};
