-- oldest schema: 2
--
-- Daily partitions of the endpoint time, so that old days are dropped in one step instead of being deleted row by row.
--
-- Gateways of schema 2 keep working: they call create_usage_partition, which now creates the partition of the endpoint
-- time too, and rows of any other day go to the default partition. Existing rows are not rewritten: their table becomes
-- the partition of all days up to today.

drop trigger sum_hours on headgate.endpoint_time;
alter table headgate.endpoint_time rename to endpoint_time_before;
alter index headgate.endpoint_time_pkey rename to endpoint_time_before_pkey;

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
) partition by range (at);

do $$
declare
    newest timestamptz := (select max(at) from headgate.endpoint_time_before);
begin
    if newest is null then
        drop table headgate.endpoint_time_before;
    else
        execute format(
            'alter table headgate.endpoint_time attach partition headgate.endpoint_time_before'
            ' for values from (minvalue) to (%L)',
            (date_trunc('day', greatest(newest, now()) at time zone 'UTC') + interval '1 day') at time zone 'UTC');
    end if;
end
$$;
create table headgate.endpoint_time_default partition of headgate.endpoint_time default;

create trigger sum_hours after insert on headgate.endpoint_time
    referencing new table as added for each statement execute function headgate.sum_endpoint_hours();

-- Rows of the day may already be in the default partition, so they move with the partition's creation. The caller holds
-- the lock of create_usage_partition.
create function headgate.create_endpoint_time_partition(of_day date) returns void language plpgsql as $$
declare
    name text := 'endpoint_time_' || to_char(of_day, 'YYYYMMDD');
    first timestamptz := of_day::timestamp at time zone 'UTC';
    last timestamptz := (of_day + 1)::timestamp at time zone 'UTC';
begin
    if to_regclass('headgate.' || name) is not null then
        return;
    end if;
    execute format('create table headgate.%I (like headgate.endpoint_time including all)', name);
    lock table headgate.endpoint_time_default in access exclusive mode;
    execute format('with moved as (delete from headgate.endpoint_time_default where at >= $1 and at < $2 returning *)'
                   ' insert into headgate.%I select * from moved', name) using first, last;
    execute format('alter table headgate.endpoint_time attach partition headgate.%I for values from (%L) to (%L)', name,
                   first, last);
exception
    -- The day is within endpoint_time_before.
    when invalid_object_definition then null;
end
$$;

create or replace function headgate.create_usage_partition(of_day date) returns void language plpgsql as $$
declare
    name text := 'usage_' || to_char(of_day, 'YYYYMMDD');
begin
    perform pg_advisory_xact_lock(hashtext('headgate.create_usage_partition'));
    if to_regclass('headgate.' || name) is null then
        execute format('create table headgate.%I (like headgate.usage including all)', name);
        execute format('alter table headgate.usage attach partition headgate.%I for values from (%L) to (%L)', name,
                       of_day::timestamp at time zone 'UTC', (of_day + 1)::timestamp at time zone 'UTC');
    end if;
    perform headgate.create_endpoint_time_partition(of_day);
end
$$;
