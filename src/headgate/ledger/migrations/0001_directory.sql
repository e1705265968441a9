-- The directory: tenants, keys, operator overrides and the audit log.
--
-- Every change of tenants, keys or overrides first increments directory_state.version, whose row stays locked until the
-- transaction ends. Changes are therefore committed in the order of their versions, and a reader that has read up to a
-- version has missed no earlier change. Rows are marked instead of deleted, so that readers see their removal.

create table headgate.directory_state (
    singleton boolean primary key default true check (singleton),
    incarnation uuid not null default gen_random_uuid(),
    version bigint not null default 0
);
insert into headgate.directory_state default values;

create function headgate.notify_directory_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('headgate_directory', new.version::text);
    return new;
end
$$;
create trigger notify_changed after update on headgate.directory_state
    for each row execute function headgate.notify_directory_changed();

-- Tenants of all path levels: organisation, project, key.
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
    changed_version bigint not null
);
create index on headgate.tenants (changed_version, id);
create index on headgate.tenants (id text_pattern_ops) where removed_at is null;

-- Keyed hashes of the tenants' keys. A tenant has several while keys are rotated.
create table headgate.keys (
    digest bytea primary key check (octet_length(digest) = 32),
    tenant text not null references headgate.tenants (id),
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    changed_version bigint not null
);
create index on headgate.keys (changed_version, digest);
create index on headgate.keys (tenant);

create table headgate.overrides (
    id text primary key,
    verb text not null,
    target text not null,
    parameters jsonb not null default '{}',
    reason text not null default '',
    created_by text not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    ended_at timestamptz,
    changed_version bigint not null
);
create index on headgate.overrides (changed_version, id);

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

create function headgate.reject_change() returns trigger language plpgsql as $$
begin
    raise exception 'the audit log is append-only';
end
$$;
create trigger append_only before update or delete on headgate.audit
    for each row execute function headgate.reject_change();
create trigger no_truncate before truncate on headgate.audit
    for each statement execute function headgate.reject_change();
