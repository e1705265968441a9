-- What every attempt took and cost, and how the time of every endpoint was spent.
--
-- Rows are only added. Usage has a partition for each day, made before its first row and dropped when it is too old.
-- What reports mostly ask is summed up by the day in the transaction that adds the rows, so both always agree.
--
-- Every request has exactly one row whose attempt is 0 or 1 (correction 0): 0 where nothing was sent, or where its first
-- attempt was never sent by the gateway that holds it. By these requests are counted.

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

-- Partitions are attached, not created as such: that waits for no reader and holds up no writer. Two who make the same
-- one wait for each other.
create function headgate.make_usage_day(of_day date) returns void language plpgsql as $$
declare
    name text := 'usage_' || to_char(of_day, 'YYYYMMDD');
begin
    perform pg_advisory_xact_lock(hashtext('headgate.make_usage_day'));
    if to_regclass('headgate.' || name) is null then
        execute format('create table headgate.%I (like headgate.usage including all)', name);
        execute format('alter table headgate.usage attach partition headgate.%I for values from (%L) to (%L)', name,
                       of_day::timestamp at time zone 'UTC', (of_day + 1)::timestamp at time zone 'UTC');
    end if;
end
$$;

-- The day is UTC. A model that nobody serves is '' here: callers may make up any number of names. `attempts` counts those
-- that were sent.
create table headgate.usage_days (
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
    whole_us bigint not null,
    starting_us bigint not null,
    unready_us bigint not null,
    idle_us bigint not null,
    billed_us bigint not null,
    late_us bigint not null,
    hour_nano_usd bigint not null,
    price_kind text not null,
    primary key (at, endpoint, source, pool)
);

-- Budgets of tenants that are in the database; those of the file are in the file.
create table headgate.budgets (
    tenant text not null references headgate.tenants (id),
    period text not null check (period in ('day', 'month')),
    limit_nano_usd bigint not null check (limit_nano_usd >= 0),
    hard boolean not null,
    created_at timestamptz not null default now(),
    removed_at timestamptz,
    changed bigint not null,
    primary key (tenant, period)
);
create index on headgate.budgets (changed, tenant);

-- Who has been told that a budget is spent, so that nobody is told twice.
create table headgate.notices (
    scope text not null,
    period text not null,
    period_began timestamptz not null,
    percent smallint not null,
    limit_nano_usd bigint not null,
    spent_nano_usd bigint not null,
    created_at timestamptz not null default now(),
    delivered_at timestamptz,
    primary key (scope, period, period_began, percent, limit_nano_usd)
);

-- The audit log is only ever added to; what is older than 400 days may go.
create or replace function headgate.refuse_change() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if old.at < now() - interval '400 days' then
            return old;
        end if;
    end if;
    raise exception 'the audit log is only ever added to';
end
$$;
create index on headgate.audit (at);

-- What reports ask of the time of endpoints, by the hour and pool. It stays when single rows go. A row tells of the time
-- before its moment, so that of a full hour counts for the hour that ended.
create table headgate.endpoint_hours (
    hour timestamptz not null,
    pool text not null,
    hour_nano_usd bigint not null,
    price_kind text not null,
    whole_us bigint not null,
    starting_us bigint not null,
    unready_us bigint not null,
    idle_us bigint not null,
    billed_us bigint not null,
    late_us bigint not null,
    primary key (hour, pool, hour_nano_usd, price_kind)
);

create function headgate.sum_endpoint_hours() returns trigger language plpgsql as $$
begin
    insert into headgate.endpoint_hours as h
        select date_trunc('hour', at - interval '1 microsecond', 'UTC'), pool, hour_nano_usd, price_kind, sum(whole_us),
            sum(starting_us), sum(unready_us), sum(idle_us), sum(billed_us), sum(late_us)
        from added group by 1, 2, 3, 4 order by 1, 2, 3, 4
    on conflict (hour, pool, hour_nano_usd, price_kind) do update set
        whole_us = h.whole_us + excluded.whole_us, starting_us = h.starting_us + excluded.starting_us,
        unready_us = h.unready_us + excluded.unready_us, idle_us = h.idle_us + excluded.idle_us,
        billed_us = h.billed_us + excluded.billed_us, late_us = h.late_us + excluded.late_us;
    return null;
end
$$;
create trigger sum_hours after insert on headgate.endpoint_time
    referencing new table as added for each statement execute function headgate.sum_endpoint_hours();
