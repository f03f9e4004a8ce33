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
