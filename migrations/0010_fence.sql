-- compass:serves 0007
-- Advisory locks are everybody's: whoever may connect, a tenant's SQL login among them, can take the number of a stream and
-- keep its writers out. What fences now is the lock of the lease's row, which takes a right to its table. The number is still
-- held where it can be, for others to see which connections write for a stream; nobody waits for it.

-- lease_is_free() says whether p_holder may take the lease: it was given back clean, it has expired, or its holder is this
-- very pod. A lease that ends later than its length allows is from before the clock was set back, by a failover to a server
-- that is behind; it is over too, else nobody would write until that clock has caught up. Twice the length is left to small
-- steps.
create function compass.lease_is_free(lease compass.delivery_leases, p_holder text) returns boolean
    language sql volatile
return lease.clean or lease.expires_at <= clock_timestamp() or lease.holder = p_holder
    or lease.expires_at > clock_timestamp() + 2 * lease.ttl;

-- lease_acquire() takes a lease that is free, once every batch of the writer before it has ended: each holds a share of the
-- row. No row means: somebody else holds it, remaining says how long; who learns that has waited for nobody. p_above is the
-- highest epoch that a Runner was proved to have seen.
create or replace function compass.lease_acquire(p_stream text, p_holder text, p_nonce text, p_ttl interval, p_above bigint,
        out acquired boolean, out epoch bigint, out careful boolean, out remaining interval)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    lease compass.delivery_leases;
begin
    insert into compass.delivery_leases (stream) values (p_stream) on conflict do nothing;
    select * into lease from compass.delivery_leases l where l.stream = p_stream;
    if compass.lease_is_free(lease, p_holder) then
        select * into lease from compass.delivery_leases l where l.stream = p_stream for update;
    end if;
    acquired := compass.lease_is_free(lease, p_holder);
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

-- lease_raise() lifts the holder's own epoch above a placement's claim or what a Runner has seen, once the batches under the
-- one before have ended; NULL where it is not ours. New batches do not queue behind it: the caller begins none meanwhile.
create or replace function compass.lease_raise(p_stream text, p_epoch bigint, p_nonce text, p_new_nonce text, p_above bigint) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    raised bigint;
begin
    perform from compass.delivery_leases l where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce for update;
    update compass.delivery_leases l
       set epoch = greatest(l.epoch + 1, compass.number(), p_above + 1), nonce = p_new_nonce
     where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce and l.expires_at > clock_timestamp()
    returning l.epoch into raised;
    return raised;
end
$$;

-- assert_writer() leads every batch that the worker writes. It keeps a share of the lease's row to the batch's end, as a
-- foreign key's check does: renewals pass it, and a takeover either waits for this batch or is seen by it [F3]. After a wait
-- Postgres judges the row as it is then, which it does under read committed and nothing else. The placement is read in a later
-- statement, so not before the share is held. A tenant that is being moved is refused by each row that the batch writes.
create or replace function compass.assert_writer(p_stream text, p_epoch bigint, p_nonce text, p_tenant text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    shown boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'assert_writer needs read committed' using errcode = 'CP003';
    end if;
    -- An assignment and not PERFORM, which would start the executor for it.
    shown := pg_try_advisory_xact_lock_shared(compass.writer_key(p_stream));
    perform from compass.delivery_leases l
      where l.stream = p_stream and l.epoch = p_epoch and l.nonce = p_nonce and l.expires_at > clock_timestamp()
        for key share;
    if found then
        perform from compass.placements p where p.tenant_id = p_tenant and p.stream = p_stream;
    end if;
    if not found then
        raise exception 'stale writer: the lease of stream % is not held with this epoch, or the tenant is not its own', p_stream
            using errcode = 'CP001';
    end if;
end
$$;

revoke all on function compass.lease_is_free(compass.delivery_leases, text) from public;

-- A batch of the functions before has read the leases, and holds that table until it ends: this waits for it. One that stands
-- at the table from here on finds another nonce, whatever it locked, so that no writer is fenced by the old way alone.
lock table compass.delivery_leases in access exclusive mode;
update compass.delivery_leases set nonce = 'superseded by a migration' where nonce <> '';
