-- The ledger: usage and cost of every attempt, and the time of every endpoint.
--
-- Rows are only added. The usage table has one partition per day, created before its first row and dropped after the
-- retention time. Daily sums for reports are updated in the transaction that adds the rows, so both always agree.
--
-- Every request has exactly one row with attempt 0 or 1 and correction 0, by which requests are counted. The attempt is
-- 0 if nothing was sent, or if this gateway did not send the first attempt.

create table headgate.usage (
    at timestamptz not null,
    request text not null,
    attempt smallint not null,
    correction smallint not null,
    tenant text not null,
    class text not null,
    model text not null,
    served_model text not null,
    pool text not null,
    endpoint text not null,
    api text not null,
    stream boolean not null,
    tokens_in integer not null,
    tokens_cached integer not null,
    tokens_out integer not null,
    tokens_reasoning integer not null,
    usage_source text not null,
    queue_us bigint not null,
    ttft_us bigint,
    duration_us bigint not null,
    input_us bigint not null,
    output_us bigint not null,
    overhead_us bigint not null,
    outcome text not null,
    ending text not null,
    cause text not null,
    payer text not null,
    level smallint not null,
    input_nano_usd bigint not null,
    output_nano_usd bigint not null,
    overhead_nano_usd bigint not null,
    reserved_nano_usd bigint not null,
    metadata jsonb,
    primary key (at, request, attempt, correction)
) partition by range (at);

-- Partitions are created as separate tables and then attached, which does not block readers or writers. The lock
-- serializes processes that create the same partition.
create function headgate.create_usage_partition(of_day date) returns void language plpgsql as $$
declare
    name text := 'usage_' || to_char(of_day, 'YYYYMMDD');
begin
    perform pg_advisory_xact_lock(hashtext('headgate.create_usage_partition'));
    if to_regclass('headgate.' || name) is null then
        execute format('create table headgate.%I (like headgate.usage including all)', name);
        execute format('alter table headgate.usage attach partition headgate.%I for values from (%L) to (%L)', name,
                       of_day::timestamp at time zone 'UTC', (of_day + 1)::timestamp at time zone 'UTC');
    end if;
end
$$;

-- Days are in UTC. The model is '' if it does not exist, because clients can send any number of names. `attempts` is
-- the number of attempts that were sent.
create table headgate.usage_daily (
    day date not null,
    tenant text not null,
    class text not null,
    model text not null,
    pool text not null,
    payer text not null,
    cause text not null,
    outcome text not null,
    requests bigint not null,
    attempts bigint not null,
    tokens_in bigint not null,
    tokens_cached bigint not null,
    tokens_out bigint not null,
    tokens_reasoning bigint not null,
    engine_us bigint not null,
    input_nano_usd bigint not null,
    output_nano_usd bigint not null,
    overhead_nano_usd bigint not null,
    primary key (day, tenant, class, model, pool, payer, cause, outcome)
);

create table headgate.endpoint_time (
    at timestamptz not null,
    source text not null,
    endpoint text not null,
    pool text not null,
    total_us bigint not null,
    starting_us bigint not null,
    unready_us bigint not null,
    idle_us bigint not null,
    billed_us bigint not null,
    abort_lag_us bigint not null,
    hour_nano_usd bigint not null,
    price_kind text not null,
    primary key (at, endpoint, source, pool)
);

-- Budgets of tenants that are defined in the database. Budgets of the configuration file are not stored here.
create table headgate.budgets (
    tenant text not null references headgate.tenants (id),
    period text not null check (period in ('day', 'month')),
    limit_nano_usd bigint not null check (limit_nano_usd >= 0),
    hard boolean not null,
    created_at timestamptz not null default now(),
    removed_at timestamptz,
    changed_version bigint not null,
    primary key (tenant, period)
);
create index on headgate.budgets (changed_version, tenant);

-- Notifications about budget thresholds that have been sent, so that none is sent twice.
create table headgate.budget_notifications (
    scope text not null,
    period text not null,
    period_start timestamptz not null,
    percent smallint not null,
    limit_nano_usd bigint not null,
    spent_nano_usd bigint not null,
    created_at timestamptz not null default now(),
    delivered_at timestamptz,
    primary key (scope, period, period_start, percent, limit_nano_usd)
);

-- The audit log is append-only. Entries older than 400 days may be deleted.
create or replace function headgate.reject_change() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if old.at < now() - interval '400 days' then
            return old;
        end if;
    end if;
    raise exception 'the audit log is append-only';
end
$$;
create index on headgate.audit (at);

-- Endpoint time by hour and pool, for reports. It stays when individual rows are deleted. A row covers the time before
-- its timestamp, so a row at the full hour counts for the hour that has ended.
create table headgate.endpoint_hours (
    hour timestamptz not null,
    pool text not null,
    hour_nano_usd bigint not null,
    price_kind text not null,
    total_us bigint not null,
    starting_us bigint not null,
    unready_us bigint not null,
    idle_us bigint not null,
    billed_us bigint not null,
    abort_lag_us bigint not null,
    primary key (hour, pool, hour_nano_usd, price_kind)
);

create function headgate.sum_endpoint_hours() returns trigger language plpgsql as $$
begin
    insert into headgate.endpoint_hours as h
        select date_trunc('hour', at - interval '1 microsecond', 'UTC'), pool, hour_nano_usd, price_kind, sum(total_us),
            sum(starting_us), sum(unready_us), sum(idle_us), sum(billed_us), sum(abort_lag_us)
        from added group by 1, 2, 3, 4 order by 1, 2, 3, 4
    on conflict (hour, pool, hour_nano_usd, price_kind) do update set
        total_us = h.total_us + excluded.total_us, starting_us = h.starting_us + excluded.starting_us,
        unready_us = h.unready_us + excluded.unready_us, idle_us = h.idle_us + excluded.idle_us,
        billed_us = h.billed_us + excluded.billed_us, abort_lag_us = h.abort_lag_us + excluded.abort_lag_us;
    return null;
end
$$;
create trigger sum_hours after insert on headgate.endpoint_time
    referencing new table as added for each statement execute function headgate.sum_endpoint_hours();
