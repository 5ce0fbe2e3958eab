-- Times are Unix microseconds, UTC; 0 is never. Addresses are in lower case.

-- The agents that live here.
create table directory (
    agent   text   not null primary key,
    name    text   not null,
    address text   not null,
    seq     bigint not null
);
create index directory_address on directory (address);

-- One row per sender: it is locked while the sender's rate is counted.
create table senders (
    address text   not null primary key,
    last_at bigint not null
);

-- One row per recipient: it is locked while messages are put in or taken out,
-- so that seq grows in the order of commits.
create table mailboxes (
    address text   not null primary key,
    seq     bigint not null
);

create table mail (
    id           text   not null primary key,
    to_address   text   not null,
    seq          bigint not null,
    from_address text   not null,
    content      text   not null,
    reply_to     text   not null,
    signed_at    text   not null,
    signature    text   not null,
    received_at  bigint not null,
    processed_at bigint not null default 0,
    status       text   not null default 'received',
    retry_count  bigint not null default 0,
    max_retries  bigint not null,
    claimed_by   text   not null default '',
    claimed_at   bigint not null default 0,
    announced    bigint not null
);
create unique index mail_place on mail (to_address, seq);
create index mail_status on mail (to_address, status, seq);
create index mail_sender on mail (from_address, received_at);
create index mail_received on mail (received_at);
