-- Channels, their heads, and the one function that gives out positions (K1).

create table compass.channels (
    tenant_id          text not null references compass.tenants (id) on delete cascade,
    id                 text not null,
    name               text not null,
    archived           boolean not null default false,
    created_by         text not null,
    created_at_unix_ms bigint not null default compass.unix_ms(),
    primary key (tenant_id, id),
    unique (tenant_id, name),
    foreign key (tenant_id, created_by) references compass.accounts (tenant_id, id)
);
call compass.protect('compass.channels');
grant select, insert, update on compass.channels to ${app};

-- last is the newest number given out for anything; last_pos the newest that made a message deliverable. Joins, cursor
-- guards and sweeps use last_pos. Nobody but take_position() may update it: the app role has no right to.
create table compass.channel_heads (
    tenant_id  text not null,
    channel_id text not null,
    last       bigint not null default 0,
    last_pos   bigint not null default 0,
    primary key (tenant_id, channel_id),
    foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id) on delete cascade
);
call compass.protect('compass.channel_heads');
grant select, insert on compass.channel_heads to ${app};

-- lock_head() takes the head's row lock, held to commit, and returns last_pos. A transaction that has to count rows
-- before it knows how many positions it needs locks first and counts in a later statement.
create function compass.lock_head(p_tenant text, p_channel text) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    head bigint;
begin
    select h.last_pos into head from compass.channel_heads h
     where h.tenant_id = p_tenant and h.channel_id = p_channel for update;
    if not found then
        raise exception 'no such channel' using errcode = 'P0002';
    end if;
    return head;
end
$$;

-- take_position() hands out p_k consecutive numbers of one channel and returns the first. Its row lock is held to commit,
-- so the order of commits is the order of positions and nothing ever appears late. Call it once per channel and
-- transaction. p_deliverable says that the numbers become positions (pos), not only seq or rev.
create function compass.take_position(p_tenant text, p_channel text, p_k integer default 1, p_deliverable boolean default true)
    returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    now   constant bigint := compass.number();
    first bigint;
begin
    if p_k is null or p_k < 1 then
        raise exception 'take_position: k must be at least 1' using errcode = '22023';
    end if;
    -- Whoever waits here for another's commit counts on from what that one left: the row is read again after the wait.
    update compass.channel_heads h
       set last = greatest(h.last + 1, now) + p_k - 1,
           last_pos = case when p_deliverable then greatest(h.last + 1, now) + p_k - 1 else h.last_pos end
     where h.tenant_id = p_tenant and h.channel_id = p_channel
    returning h.last - p_k + 1 into first;
    if not found then
        raise exception 'no such channel' using errcode = 'P0002';
    end if;
    -- After the lock, in a statement of its own: the copier sets frozen, then takes every head FOR UPDATE, so whoever
    -- got the lock before it is copied and whoever gets it after sees the freeze [T4].
    if exists (select from compass.tenants t where t.id = p_tenant and t.frozen) then
        raise exception 'tenant is being moved' using errcode = 'CP002';
    end if;
    return first;
end
$$;
revoke all on function compass.lock_head(text, text) from public;
revoke all on function compass.take_position(text, text, integer, boolean) from public;
grant execute on function compass.lock_head(text, text) to ${app};
grant execute on function compass.take_position(text, text, integer, boolean) to ${app};

-- joined_at is the head at the moment of joining, read under its lock: what was positioned before is not owed.
create table compass.channel_members (
    tenant_id  text not null,
    channel_id text not null,
    account_id text not null,
    joined_at  bigint not null,
    primary key (tenant_id, channel_id, account_id),
    foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id) on delete cascade,
    foreign key (tenant_id, account_id) references compass.accounts (tenant_id, id)
);
create index channel_members_account on compass.channel_members (tenant_id, account_id, channel_id);
call compass.protect('compass.channel_members');
grant select, insert, update, delete on compass.channel_members to ${app};

-- What an agent acknowledged, per channel. Made on joining, raised on rejoining, kept on leaving; moved by one guarded
-- statement of a Server [D10].
create table compass.delivery_cursors (
    tenant_id  text not null,
    agent_id   text not null,
    channel_id text not null,
    acked      bigint not null,
    primary key (tenant_id, agent_id, channel_id),
    foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id) on delete cascade,
    foreign key (tenant_id, agent_id) references compass.accounts (tenant_id, id)
);
create index delivery_cursors_channel on compass.delivery_cursors (tenant_id, channel_id);
call compass.protect('compass.delivery_cursors');
grant select, insert, update on compass.delivery_cursors to ${app};

-- Policies and tenant-first keys make the planner multiply selectivities that are not independent; without these it
-- chooses quadratic nested loops for the sweep.
create statistics compass.channel_heads_tenant (dependencies, ndistinct) on tenant_id, channel_id from compass.channel_heads;
create statistics compass.channel_members_tenant (dependencies, ndistinct) on tenant_id, account_id from compass.channel_members;
create statistics compass.delivery_cursors_tenant (dependencies, ndistinct) on tenant_id, agent_id from compass.delivery_cursors;
