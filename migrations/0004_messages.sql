-- Turns and messages, and what a message makes owed beside the chain.

-- A turn is opened by the first call that names it and settled once, by its author, its next turn, its session's end or
-- expiry. Post and edit lock it FOR SHARE, settle and ask FOR UPDATE [D4].
create table compass.turns (
    tenant_id          text not null,
    session_id         text not null,
    id                 text not null,
    agent_id           text not null,
    settled_by         text check (settled_by in ('author', 'next_turn', 'heartbeat', 'session_end', 'expiry', 'max_age', 'operator')),
    opened_at_unix_ms  bigint not null default compass.unix_ms(),
    settled_at_unix_ms bigint,
    primary key (tenant_id, session_id, id),
    foreign key (tenant_id, agent_id) references compass.accounts (tenant_id, id),
    check ((settled_by is null) = (settled_at_unix_ms is null))
);
create unique index turns_one_open on compass.turns (tenant_id, session_id) where settled_by is null;
call compass.protect('compass.turns');
grant select, insert, update on compass.turns to ${app};

-- seq: when it was made; rev: its last change; pos: when it became deliverable, NULL while its turn is open. All three are
-- drawn from the channel's head by take_position().
create table compass.messages (
    tenant_id          text not null,
    id                 text not null,
    channel_id         text not null,
    author_id          text not null,
    session_id         text,
    turn_id            text,
    kind               text not null default 'message' check (kind in ('message', 'ask', 'answer')),
    seq                bigint not null,
    rev                bigint not null,
    pos                bigint,
    blocks             jsonb not null,
    -- Handles that the blocks name; kept beside them so that routing needs no jsonb operator, which RLS keeps off indexes.
    mentions           text[] not null default '{}',
    client_id          text not null,
    created_at_unix_ms bigint not null default compass.unix_ms(),
    mentions_routed_at timestamptz,
    primary key (tenant_id, id),
    unique (tenant_id, channel_id, seq),
    unique (tenant_id, channel_id, pos),
    unique (tenant_id, author_id, client_id),
    foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id) on delete cascade,
    foreign key (tenant_id, author_id) references compass.accounts (tenant_id, id),
    check ((session_id is null) = (turn_id is null)),
    check (pos is not null or turn_id is not null),
    check (mentions_routed_at is null or pos is not null)
);
create index messages_rev on compass.messages (tenant_id, channel_id, rev);
create index messages_held on compass.messages (tenant_id, session_id, turn_id) where pos is null;
create index messages_unrouted on compass.messages (tenant_id, id) where pos is not null and mentions_routed_at is null;
create statistics compass.messages_tenant (dependencies, ndistinct) on tenant_id, channel_id from compass.messages;
call compass.protect('compass.messages');
grant select, insert, update on compass.messages to ${app};

-- A message with a position is immutable (K1): the statements say WHERE pos IS NULL, and this says it to everybody else.
create function compass.refuse_settled() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'message has its position and cannot change' using errcode = 'CP004';
end
$$;
create trigger messages_settled before update of tenant_id, id, channel_id, author_id, session_id, turn_id, kind, seq, rev, pos, blocks, mentions, client_id
    on compass.messages for each row when (old.pos is not null) execute function compass.refuse_settled();

-- What is owed to an agent beside the chain: mentions, answers, replays. pos identifies it together with the message: a
-- settle that a failover forgot and that was done again is another delivery. done rows keep the chain from sending the
-- message a second time until the cursor has passed it.
create table compass.owed_mentions (
    tenant_id  text not null,
    agent_id   text not null,
    message_id text not null,
    channel_id text not null,
    pos        bigint not null,
    kind       text not null check (kind in ('mention', 'answer', 'replay')),
    done       boolean not null default false,
    primary key (tenant_id, agent_id, message_id),
    foreign key (tenant_id, message_id) references compass.messages (tenant_id, id) on delete cascade,
    foreign key (tenant_id, agent_id) references compass.accounts (tenant_id, id)
);
create index owed_mentions_pending on compass.owed_mentions (tenant_id, agent_id, pos) where not done;
create index owed_mentions_channel on compass.owed_mentions (tenant_id, channel_id, agent_id, pos);
create index owed_mentions_fresh on compass.owed_mentions (tenant_id, channel_id, pos) where not done;
call compass.protect('compass.owed_mentions');
grant select, insert, update, delete on compass.owed_mentions to ${app};

create table compass.asks (
    tenant_id     text not null,
    message_id    text not null,
    channel_id    text not null,
    asker_id      text not null,
    asker_session text,
    answer_id     text,
    primary key (tenant_id, message_id),
    foreign key (tenant_id, message_id) references compass.messages (tenant_id, id) on delete cascade,
    foreign key (tenant_id, answer_id) references compass.messages (tenant_id, id)
);
create index asks_answer on compass.asks (tenant_id, answer_id) where answer_id is not null;
call compass.protect('compass.asks');
grant select, insert, update on compass.asks to ${app};

create table compass.pins (
    tenant_id  text not null,
    channel_id text not null,
    message_id text not null,
    primary key (tenant_id, channel_id, message_id),
    foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id) on delete cascade,
    foreign key (tenant_id, message_id) references compass.messages (tenant_id, id) on delete cascade
);
call compass.protect('compass.pins');
grant select, insert, delete on compass.pins to ${app};
