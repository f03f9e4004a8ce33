-- Who is here: tenants, where each of them lives, and the accounts and tokens that speak for it.

create table compass.tenants (
    id                 text primary key check (id <> ''),
    slug               text not null unique,
    display_name       text not null default '',
    created_at_unix_ms bigint not null default compass.unix_ms(),
    -- Admission and database limits, as CompassTenant.spec.limits has them; absent keys mean the defaults.
    limits             jsonb not null default '{}',
    -- A frozen tenant gets no position, ack, turn or worker write: it is being copied to another database [T4].
    frozen             boolean not null default false
);
call compass.protect('compass.tenants', provisioned => true, scope => 'id');
grant select on compass.tenants to ${app};

-- Routing truth is database 0; every database has the row of its own tenants. claim rises whenever the tenant changes
-- hands, and leads the fence of every command (K3).
create table compass.placements (
    tenant_id   text primary key references compass.tenants (id) on delete cascade,
    database_id integer not null default 0,
    stream      text,
    claim       bigint not null default 0,
    draining    boolean not null default false
);
create index placements_stream on compass.placements (stream);
call compass.protect('compass.placements', provisioned => true);
grant select on compass.placements to ${app};

create table compass.accounts (
    tenant_id          text not null references compass.tenants (id) on delete cascade,
    id                 text not null,
    kind               text not null check (kind in ('person', 'agent')),
    role               text not null default 'member' check (role in ('member', 'admin')),
    handle             text not null,
    display_name       text not null default '',
    -- Only agents wake: on_owed starts a session when something is owed and none is live.
    wake               text not null default 'manual' check (wake in ('on_owed', 'manual')),
    created_at_unix_ms bigint not null default compass.unix_ms(),
    deleted_at_unix_ms bigint,
    primary key (tenant_id, id),
    unique (tenant_id, handle)
);
-- The sweep looks for those to wake.
create index accounts_wake on compass.accounts (tenant_id, id) where wake = 'on_owed' and deleted_at_unix_ms is null;
call compass.protect('compass.accounts', provisioned => true);
grant select, insert, update on compass.accounts to ${app};

-- Only the hash of a token is kept (SHA-256 of a 256-bit random secret needs no salt).
create table compass.account_tokens (
    tenant_id          text not null,
    id                 text not null,
    account_id         text not null,
    hash               bytea not null,
    created_at_unix_ms bigint not null default compass.unix_ms(),
    revoked_at_unix_ms bigint,
    primary key (tenant_id, id),
    unique (tenant_id, hash),
    foreign key (tenant_id, account_id) references compass.accounts (tenant_id, id) on delete cascade
);
call compass.protect('compass.account_tokens', provisioned => true);
grant select, insert, update on compass.account_tokens to ${app};

-- Every call of a platform admin that names another tenant, and every change of roles, tokens and dead letters.
create table compass.audit_log (
    tenant_id  text not null references compass.tenants (id) on delete cascade,
    id         bigint generated always as identity,
    at_unix_ms bigint not null default compass.unix_ms(),
    actor      text not null,
    action     text not null,
    detail     jsonb not null default '{}',
    primary key (tenant_id, id)
);
call compass.protect('compass.audit_log', provisioned => true);
grant select, insert on compass.audit_log to ${app};
