-- compass:serves 0007
-- What 0008 asks at each row, for less: to set a path and put it back takes a twentieth of a write. The function lends
-- nobody rights, and every table and operator in it says whose it is, so no path leads it astray.
create or replace function compass.refuse_frozen() returns trigger
    language plpgsql
as $$
begin
    if tg_op operator(pg_catalog.=) 'DELETE' then
        if exists (select from compass.tenants t where t.id operator(pg_catalog.=) old.tenant_id and t.frozen) then
            raise exception 'tenant is being moved' using errcode = 'CP002';
        end if;
        return old;
    end if;
    if exists (select from compass.tenants t where t.id operator(pg_catalog.=) new.tenant_id and t.frozen) then
        raise exception 'tenant is being moved' using errcode = 'CP002';
    end if;
    return new;
end
$$;
