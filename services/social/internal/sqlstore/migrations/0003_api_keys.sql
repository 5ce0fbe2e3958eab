-- API keys and the tokens of sign-ins. A key itself is not stored, only its SHA-256.
create table api_keys (
    id         text   not null primary key,
    hash       text   not null unique,
    hint       text   not null,
    address    text   not null,
    name       text   not null,
    scopes     text   not null,
    created_at bigint not null,
    expires_at bigint not null,
    revoked_at bigint not null default 0
);
create index api_keys_address on api_keys (address, created_at);
create index api_keys_created on api_keys (created_at);

-- One row per address: it is locked while the keys of the address are counted.
create table key_owners (
    address text   not null primary key,
    changed bigint not null
);

-- Nonces that were used for a sign-in, until they expire.
create table used_nonces (
    nonce      text   not null primary key,
    expires_at bigint not null
);

-- The secret of the nonces, in hex, which all replicas share.
create table nonce_secret (
    one    bigint not null primary key check (one = 1),
    secret text   not null
);
