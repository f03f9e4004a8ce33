-- compass:serves 0007
-- A tenant that is being copied to another database is written to by nobody but the copier. Positions, acks, turns and the
-- worker say so in their own statements [T4]; this says it for every row of every table, so that an account, a pin or a
-- token that comes in the middle of a copy is refused and not lost. Where a tenant does not live, its row stays frozen:
-- whoever still has the old route is told to look again.
create function compass.refuse_frozen() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'DELETE' then
        if exists (select from compass.tenants t where t.id = old.tenant_id and t.frozen) then
            raise exception 'tenant is being moved' using errcode = 'CP002';
        end if;
        return old;
    end if;
    if exists (select from compass.tenants t where t.id = new.tenant_id and t.frozen) then
        raise exception 'tenant is being moved' using errcode = 'CP002';
    end if;
    return new;
end
$$;

-- The owner is the copier, the purge, and the functions that judge for themselves. placements is what a move writes.
create procedure compass.freezable(rel regclass)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('create trigger frozen before insert or update or delete on %s for each row when (current_user <> %L) execute function compass.refuse_frozen()',
        rel, (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = rel));
end
$$;
revoke all on procedure compass.freezable(regclass) from public;

do $$
declare
    rel regclass;
begin
    for rel in
        select c.oid from pg_class c
         where c.relnamespace = 'compass'::regnamespace and c.relkind = 'r' and c.relname <> 'placements'
           and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
    loop
        call compass.freezable(rel);
    end loop;
end
$$;
