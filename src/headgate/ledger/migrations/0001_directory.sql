-- Who may call, what operators have ordered, and who changed it.
--
-- Every change of tenants, keys or orders first raises directory_state.version, whose row stays locked until the
-- transaction ends. So changes are committed in the order of their numbers, and whoever has read up to a number has
-- missed nothing below it. Rows are never deleted, only marked, or a reader would not hear of their end.

create table headgate.directory_state (
    one boolean primary key default true check (one),
    incarnation uuid not null default gen_random_uuid(),
    version bigint not null default 0
);
insert into headgate.directory_state default values;

create function headgate.tell_directory_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('headgate_directory', new.version::text);
    return new;
end
$$;
create trigger tell after update on headgate.directory_state
    for each row execute function headgate.tell_directory_changed();

-- All levels of a path: organisation, project, key.
create table headgate.tenants (
    id text primary key check (char_length(id) <= 256),
    classes text[] not null default '{}',
    models text[] not null default '{}',
    weight integer check (weight >= 1),
    plan text check (plan in ('free', 'standard', 'critical')),
    requests_per_minute bigint check (requests_per_minute >= 1),
    tokens_per_minute bigint check (tokens_per_minute >= 1),
    concurrency bigint check (concurrency >= 1),
    created_at timestamptz not null default now(),
    removed_at timestamptz,
    changed bigint not null
);
create index on headgate.tenants (changed, id);
create index on headgate.tenants (id text_pattern_ops) where removed_at is null;

-- What is known of the keys of a tenant: their keyed hashes. Two at a time while one replaces the other.
create table headgate.keys (
    digest bytea primary key check (octet_length(digest) = 32),
    tenant text not null references headgate.tenants (id),
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    changed bigint not null
);
create index on headgate.keys (changed, digest);
create index on headgate.keys (tenant);

create table headgate.orders (
    id text primary key,
    verb text not null,
    target text not null,
    terms jsonb not null default '{}',
    reason text not null default '',
    ordered_by text not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    ended_at timestamptz,
    changed bigint not null
);
create index on headgate.orders (changed, id);

create table headgate.audit (
    number bigint generated always as identity primary key,
    at timestamptz not null default now(),
    actor text not null,
    origin text not null,
    action text not null,
    target text not null,
    before jsonb,
    after jsonb
);

create function headgate.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'the audit log is only ever added to';
end
$$;
create trigger only_added_to before update or delete on headgate.audit
    for each row execute function headgate.refuse_change();
create trigger never_emptied before truncate on headgate.audit
    for each statement execute function headgate.refuse_change();
