-- Runners, and the sessions that they host.

-- Platform tables: they belong to no tenant, so no role but the owner may touch them, and everything goes through the
-- functions below. runners and runner_tokens live in database 0 only.
create table compass.runners (
    id                 text primary key,
    fleet              text not null,
    public_key         text not null unique,
    -- A new process is a new incarnation; expiry raises it, so that a zombie's heartbeat is refused.
    incarnation        bigint not null default 0,
    created_at_unix_ms bigint not null default compass.unix_ms()
);

-- A one-time token binds to the first key that shows it [R4].
create table compass.runner_tokens (
    hash               bytea primary key,
    fleet              text not null,
    bound_key          text,
    disabled           boolean not null default false,
    created_at_unix_ms bigint not null default compass.unix_ms()
);

-- One lease per Runner, not per session [D13]; written by each heartbeat in every database where the Runner has sessions.
-- Expiry is judged by this database's clock alone.
create table compass.runner_leases (
    runner_id   text primary key,
    fleet       text not null,
    incarnation bigint not null,
    expires_at  timestamptz not null,
    sessions    integer not null default 0
);
grant select on compass.runner_leases to ${app}, ${system};

create table compass.agent_placements (
    tenant_id  text not null,
    agent_id   text not null,
    runner_id  text not null,
    session_id text not null,
    generation bigint not null,
    primary key (tenant_id, agent_id),
    foreign key (tenant_id, agent_id) references compass.accounts (tenant_id, id)
);
call compass.protect('compass.agent_placements');
grant select, insert, update on compass.agent_placements to ${app};

-- A session is current while its agent's placement names it and its generation. last_n is the newest event taken, under
-- this row's lock; last_command the newest command number given out.
create table compass.session_bindings (
    tenant_id         text not null,
    session_id        text not null,
    agent_account_id  text not null,
    runner_id         text not null,
    incarnation       bigint not null,
    generation        bigint not null,
    live              boolean not null default true,
    claimed           boolean not null default false,
    claim_counter     bigint not null default 0,
    open_turn         text,
    last_n            bigint not null default 0,
    last_command      bigint not null default 0,
    bound_at_unix_ms  bigint not null default compass.unix_ms(),
    primary key (tenant_id, session_id),
    foreign key (tenant_id, agent_account_id) references compass.accounts (tenant_id, id)
);
create unique index session_bindings_live on compass.session_bindings (tenant_id, agent_account_id) where live;
create index session_bindings_runner on compass.session_bindings (runner_id, tenant_id) where live;
call compass.protect('compass.session_bindings');
grant select, insert, update on compass.session_bindings to ${app};

-- Starts, stops, steers and everything else beside the chain. n is clock-based and chained by prev, because last + 1
-- repeats after a failover that loses commits; a row goes when it is acknowledged.
create table compass.session_commands (
    tenant_id  text not null,
    session_id text not null,
    n          bigint not null,
    prev       bigint not null,
    kind       text not null check (kind in ('start', 'stop', 'steer', 'mention', 'answer', 'replay')),
    message_id text,
    pos        bigint,
    text       text not null default '',
    primary key (tenant_id, session_id, n),
    foreign key (tenant_id, session_id) references compass.session_bindings (tenant_id, session_id) on delete cascade
);
create unique index session_commands_message on compass.session_commands (tenant_id, session_id, message_id) where message_id is not null;
call compass.protect('compass.session_commands');
grant select, insert, delete on compass.session_commands to ${app};

-- runner_issue_token() stores the hash of an enrolment token.
create function compass.runner_issue_token(p_hash bytea, p_fleet text) returns void
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
begin atomic
    insert into compass.runner_tokens (hash, fleet) values (p_hash, p_fleet);
end;

-- runner_enroll() binds the token to the first key that shows it. The same key again gets the same answer (a response may
-- be lost); another key disables the token and gets outcome 'stolen'.
create function compass.runner_enroll(p_hash bytea, p_key text, p_id text, out outcome text, out runner_id text, out fleet text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    token compass.runner_tokens;
begin
    select * into token from compass.runner_tokens t where t.hash = p_hash for update;
    if not found then
        outcome := 'unknown';
        return;
    end if;
    if token.bound_key is not null and token.bound_key <> p_key then
        update compass.runner_tokens t set disabled = true where t.hash = p_hash;
        outcome := 'stolen';
        return;
    end if;
    if token.disabled then
        outcome := 'disabled';
        return;
    end if;
    update compass.runner_tokens t set bound_key = p_key where t.hash = p_hash and t.bound_key is null;
    insert into compass.runners (id, fleet, public_key) values (p_id, token.fleet, p_key) on conflict (public_key) do nothing;
    select r.id, r.fleet into runner_id, fleet from compass.runners r where r.public_key = p_key;
    outcome := 'enrolled';
end
$$;

-- runner_token_state() tells whether a token can still enrol somebody: the operator publishes another once it was used.
create function compass.runner_token_state(p_hash bytea) returns table (bound boolean, disabled boolean)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
begin atomic
    select t.bound_key is not null, t.disabled from compass.runner_tokens t where t.hash = p_hash;
end;

-- runner_find() tells the fleet and public key of a Runner; no row where there is none.
create function compass.runner_find(p_id text) returns table (fleet text, public_key text, incarnation bigint)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
begin atomic
    select r.fleet, r.public_key, r.incarnation from compass.runners r where r.id = p_id;
end;

-- runner_hello() begins a new incarnation, which ends every binding of the old one, and leases it.
create function compass.runner_hello(p_id text, p_ttl interval) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    runner compass.runners;
begin
    select * into runner from compass.runners r where r.id = p_id for update;
    if not found then
        raise exception 'no such runner' using errcode = 'P0002';
    end if;
    runner.incarnation := greatest(runner.incarnation + 1, compass.number());
    update compass.runners r set incarnation = runner.incarnation where r.id = p_id;
    insert into compass.runner_leases as l (runner_id, fleet, incarnation, expires_at)
    values (p_id, runner.fleet, runner.incarnation, clock_timestamp() + p_ttl)
    on conflict (runner_id) do update
       set incarnation = excluded.incarnation, expires_at = excluded.expires_at, sessions = 0;
    return runner.incarnation;
end
$$;

-- runner_lease() brings an incarnation to a database other than 0, where the Runner itself has no row; false where that
-- knows a newer one.
create function compass.runner_lease(p_id text, p_fleet text, p_incarnation bigint, p_ttl interval) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into compass.runner_leases as l (runner_id, fleet, incarnation, expires_at)
    values (p_id, p_fleet, p_incarnation, clock_timestamp() + p_ttl)
    on conflict (runner_id) do update
       set fleet = excluded.fleet, incarnation = excluded.incarnation, expires_at = excluded.expires_at
     where l.incarnation <= excluded.incarnation;
    return found;
end
$$;

-- runner_renew() extends the lease of this very incarnation; false means: it is over, drop your sessions, say hello again.
-- An expired lease that nobody expired yet may be renewed: nothing was settled in its name.
create function compass.runner_renew(p_id text, p_incarnation bigint, p_ttl interval, p_sessions integer) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    update compass.runner_leases l set expires_at = clock_timestamp() + p_ttl, sessions = p_sessions
     where l.runner_id = p_id and l.incarnation = p_incarnation;
    return found;
end
$$;

-- runner_expire() judges again under the Runner's row lock and raises the incarnation, so that whatever the old process
-- still sends is refused. p_probe is this database's time at the caller's last look at a healthy Postgres and NATS: a
-- caller that was frozen between its verdict and this statement, so that the look is older than p_fresh, expires nothing.
-- Returns false then, and where the lease is alive or unknown. Locks runners before runner_leases, as runner_hello() does.
-- In a database other than 0 the next number is enough, and must stay below that of database 0's next hello.
create function compass.runner_expire(p_id text, p_probe timestamptz, p_fresh interval) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    known  boolean;
    raised bigint;
begin
    perform from compass.runners r where r.id = p_id for update;
    known := found;
    perform from compass.runner_leases l where l.runner_id = p_id for update;
    select greatest(l.incarnation + 1, case when known then compass.number() end) into raised
      from compass.runner_leases l
     where l.runner_id = p_id and l.expires_at <= clock_timestamp() and p_probe >= clock_timestamp() - p_fresh;
    if raised is null then
        return false;
    end if;
    update compass.runner_leases l set incarnation = raised where l.runner_id = p_id;
    update compass.runners r set incarnation = raised where r.id = p_id;
    return true;
end
$$;

-- runner_pick() chooses the live Runner with the fewest sessions among the fleets that the tenant may use, and counts the
-- new session at once, so that two starts in a row do not land on the same one.
create function compass.runner_pick(p_fleets text[], out runner_id text, out incarnation bigint, out fleet text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    select l.runner_id, l.incarnation, l.fleet into runner_id, incarnation, fleet
      from compass.runner_leases l
     where l.fleet = any (p_fleets) and l.expires_at > clock_timestamp()
     order by l.sessions, l.runner_id limit 1
       for update;
    update compass.runner_leases l set sessions = l.sessions + 1 where l.runner_id = runner_pick.runner_id;
end
$$;

revoke all on function compass.runner_issue_token(bytea, text), compass.runner_token_state(bytea), compass.runner_enroll(bytea, text, text),
    compass.runner_find(text), compass.runner_hello(text, interval), compass.runner_lease(text, text, bigint, interval),
    compass.runner_renew(text, bigint, interval, integer), compass.runner_expire(text, timestamptz, interval), compass.runner_pick(text[]) from public;
grant execute on function compass.runner_issue_token(bytea, text), compass.runner_token_state(bytea) to ${app}, ${provision};
grant execute on function compass.runner_enroll(bytea, text, text), compass.runner_find(text), compass.runner_hello(text, interval),
    compass.runner_lease(text, text, bigint, interval), compass.runner_renew(text, bigint, interval, integer), compass.runner_pick(text[]) to ${app};
grant execute on function compass.runner_expire(text, timestamptz, interval) to ${system};
