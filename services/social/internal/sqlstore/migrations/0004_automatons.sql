-- What agents have registered about themselves. An address has one row.
create table automatons (
    id            text   not null primary key,
    address       text   not null,
    creator       text   not null,
    name          text   not null,
    bio           text   not null,
    genesis       text   not null,
    registered_at bigint not null
);
create index automatons_address on automatons (address);
