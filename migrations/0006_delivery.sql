-- What the delivery worker writes, and the fence that keeps a stale one from writing it (K3).

-- Set aside after its attempts. This is truth: under a cumulative cursor a skip must be remembered; sweeps leave it out
-- until it is replayed [D8].
create table compass.dead_letters (
    tenant_id     text not null,
    message_id    text not null,
    recipient_id  text not null,
    channel_id    text not null,
    pos           bigint not null,
    attempts      integer not null,
    reason        text not null,
    first_unix_ms bigint not null,
    last_unix_ms  bigint not null default compass.unix_ms(),
    replayed      integer not null default 0,
    primary key (tenant_id, message_id, recipient_id),
    foreign key (tenant_id, message_id) references compass.messages (tenant_id, id) on delete cascade
);
create index dead_letters_recipient on compass.dead_letters (tenant_id, recipient_id, channel_id, pos);
call compass.protect('compass.dead_letters');
grant select, insert, update, delete on compass.dead_letters to ${app};

-- Written before a row is read after an unclean exit, and deleted when the worker survived it: a row that kills the worker
-- parks instead of killing it for ever.
create table compass.delivery_attempts (
    tenant_id     text not null,
    message_id    text not null,
    recipient_id  text not null,
    n             integer not null,
    first_unix_ms bigint not null default compass.unix_ms(),
    last_unix_ms  bigint not null default compass.unix_ms(),
    primary key (tenant_id, message_id, recipient_id),
    foreign key (tenant_id, message_id) references compass.messages (tenant_id, id) on delete cascade
);
call compass.protect('compass.delivery_attempts');
grant select, insert, update, delete on compass.delivery_attempts to ${app};

-- One row per stream in each database that the stream touches [F7]. No role may touch it but through the functions below.
-- drained maps a tenant to the claim that this stream has let go of.
create table compass.delivery_leases (
    stream     text primary key,
    holder     text not null default '',
    epoch      bigint not null default 0,
    nonce      text not null default '',
    expires_at timestamptz not null default '-infinity',
    ttl        interval not null default '1 year', -- what expires_at was set with
    clean      boolean not null default true,
    drained    jsonb not null default '{}'
);

-- All holders of one stream meet at this key: writers share it, acquisition takes it alone.
create function compass.writer_key(p_stream text) returns bigint
    language sql immutable parallel safe
return hashtextextended('compass.writer/' || p_stream, 0);

-- lease_acquire() waits for every batch of the writer before it, then takes the lease if it is free: it was given back
-- clean, it has expired, or its holder is this very pod. No row means: somebody else holds it, remaining says how long. A lease
-- that ends later than its length allows is from before the clock was set back, by a failover to a server that is behind; it
-- is over too, else nobody would write until that clock has caught up. Twice the length is left to small steps.
-- p_above is the highest epoch that a Runner was proved to have seen.
create function compass.lease_acquire(p_stream text, p_holder text, p_nonce text, p_ttl interval, p_above bigint,
        out acquired boolean, out epoch bigint, out careful boolean, out remaining interval)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    lease compass.delivery_leases;
begin
    perform pg_advisory_xact_lock(compass.writer_key(p_stream));
    insert into compass.delivery_leases (stream) values (p_stream) on conflict do nothing;
    select * into lease from compass.delivery_leases l where l.stream = p_stream for update;
    acquired := lease.clean or lease.expires_at <= clock_timestamp() or lease.holder = p_holder
        or lease.expires_at > clock_timestamp() + 2 * lease.ttl;
    if not acquired then
        remaining := lease.expires_at - clock_timestamp();
        return;
    end if;
    epoch := greatest(lease.epoch + 1, compass.number(), p_above + 1);
    careful := not lease.clean;
    remaining := p_ttl;
    update compass.delivery_leases l
       set holder = p_holder, epoch = lease_acquire.epoch, nonce = p_nonce, expires_at = clock_timestamp() + p_ttl, ttl = p_ttl, clean = false
     where l.stream = p_stream;
end
$$;

-- lease_renew() extends a lease that is still ours and has not expired; an expired one is only re-acquired [F2].
create function compass.lease_renew(p_stream text, p_epoch bigint, p_nonce text, p_ttl interval) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    update compass.delivery_leases l set expires_at = clock_timestamp() + p_ttl, ttl = p_ttl
     where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce and l.expires_at > clock_timestamp();
    return found;
end
$$;

-- lease_raise() lifts the holder's own epoch above a placement's claim or what a Runner has seen; NULL where it is not ours.
create function compass.lease_raise(p_stream text, p_epoch bigint, p_nonce text, p_new_nonce text, p_above bigint) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    raised bigint;
begin
    perform pg_advisory_xact_lock(compass.writer_key(p_stream));
    update compass.delivery_leases l
       set epoch = greatest(l.epoch + 1, compass.number(), p_above + 1), nonce = p_new_nonce
     where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce and l.expires_at > clock_timestamp()
    returning l.epoch into raised;
    return raised;
end
$$;

-- lease_release() says goodbye: the next holder need neither wait nor be careful.
create function compass.lease_release(p_stream text, p_epoch bigint, p_nonce text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    update compass.delivery_leases l set clean = true, expires_at = clock_timestamp()
     where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce and l.expires_at > clock_timestamp();
    return found;
end
$$;

-- lease_read() is what the operator and the plugin show.
create function compass.lease_read(p_stream text)
    returns table (holder text, epoch bigint, expires_at timestamptz, clean boolean, drained jsonb)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
begin atomic
    select l.holder, l.epoch, l.expires_at, l.clean, l.drained from compass.delivery_leases l where l.stream = p_stream;
end;

-- assert_writer() leads every batch that the worker writes. The shared lock comes first and the rows are read in a later
-- statement, so a takeover either waits for this batch or is seen by it [F3]; that needs a new snapshot per statement,
-- hence read committed and nothing else. A tenant that is being moved is refused by each row that the batch writes.
create function compass.assert_writer(p_stream text, p_epoch bigint, p_nonce text, p_tenant text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    locked boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'assert_writer needs read committed' using errcode = 'CP003';
    end if;
    -- An assignment and not PERFORM, which would start the executor for it: half of the fence's cost was such starts.
    locked := pg_advisory_xact_lock_shared(compass.writer_key(p_stream)) is not null;
    perform from compass.delivery_leases l, compass.placements p
      where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce and l.expires_at > clock_timestamp()
        and p.tenant_id = p_tenant and p.stream = p_stream;
    if not found then
        raise exception 'stale writer: the lease of stream % is not held with this epoch, or the tenant is not its own', p_stream
            using errcode = 'CP001';
    end if;
end
$$;

-- confirm_drain() is the old worker's word, behind assert_writer, that it sends nothing more for the tenant under p_claim.
create function compass.confirm_drain(p_stream text, p_tenant text, p_claim bigint) returns void
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
begin atomic
    update compass.delivery_leases l set drained = l.drained || jsonb_build_object(p_tenant, p_claim) where l.stream = p_stream;
end;

revoke all on function compass.writer_key(text), compass.lease_acquire(text, text, text, interval, bigint),
    compass.lease_renew(text, bigint, text, interval), compass.lease_raise(text, bigint, text, text, bigint),
    compass.lease_release(text, bigint, text), compass.lease_read(text), compass.assert_writer(text, bigint, text, text),
    compass.confirm_drain(text, text, bigint) from public;
grant execute on function compass.lease_acquire(text, text, text, interval, bigint), compass.lease_renew(text, bigint, text, interval),
    compass.lease_raise(text, bigint, text, text, bigint), compass.lease_release(text, bigint, text) to ${system};
grant execute on function compass.lease_read(text) to ${system}, ${provision};
grant execute on function compass.assert_writer(text, bigint, text, text), compass.confirm_drain(text, text, bigint) to ${app};
