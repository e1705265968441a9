-- oldest schema: 2
--
-- Sums by business unit, so that reports by unit do not read every usage row.
--
-- A business unit is the value of a metadata key. Gateways register the key that they use. Registering the first key
-- creates a trigger that adds the amounts of all inserted rows to a queue, in the transaction that inserts the rows.
-- Rows of gateways of earlier versions are therefore included, and a row that already exists is not counted again.
-- Gateways move the queue to the sums in slices, each in one transaction. An amount is either in the queue or in the
-- sums, and reports add both.
--
-- The days with rows from before the registration are in the backlog. Reports read the rows of these days until a
-- gateway has added their missing amounts to the queue and removed the day from the backlog.
--
-- Without a registered key there is no trigger, and inserting a row costs nothing extra. Amounts have the same meaning
-- as in a line of a report. They are numeric, so that no sum can overflow.

create table headgate.usage_unit_keys (
    key text primary key,
    created_at timestamptz not null default now()
);

-- Keys whose amounts remain to be deleted.
create table headgate.usage_unit_removed_keys (
    key text primary key
);

create table headgate.usage_unit_backlog (
    key text not null,
    day date not null,
    primary key (key, day)
);

-- Amounts of one row of the tables below. Dropped below.
create table headgate.usage_unit_amounts (
    requests numeric not null,
    unsent numeric not null,
    attempts numeric not null,
    engine_us numeric not null,
    tokens_in numeric not null,
    tokens_cached numeric not null,
    tokens_out numeric not null,
    input_nano_usd numeric not null,
    output_nano_usd numeric not null,
    overhead_nano_usd numeric not null,
    retries_nano_usd numeric not null,
    charged_nano_usd numeric not null,
    cost_nano_usd numeric not null
);

-- Units are sorted by code point, as in reports.
create table headgate.usage_unit_days (
    key text not null,
    day date not null,
    tenant text not null,
    class text not null,
    model text not null,
    unit text collate "C" not null,
    like headgate.usage_unit_amounts,
    primary key (key, day, tenant, class, model, unit)
);

create table headgate.usage_unit_queue (
    added_at timestamptz not null default now(),
    like headgate.usage_unit_days
);
create index usage_unit_queue_by_age on headgate.usage_unit_queue (added_at);

-- The scope is an organisation, or '' for all tenants. A month may have millions of units. Reports read the most
-- expensive ones through the second index, and the total and the number of units from usage_unit_totals.
create table headgate.usage_unit_months (
    key text not null,
    month date not null,
    scope text not null,
    unit text collate "C" not null,
    like headgate.usage_unit_amounts,
    primary key (key, month, scope, unit)
);
create index usage_unit_months_by_cost on headgate.usage_unit_months (key, month, scope, cost_nano_usd desc, unit);

create table headgate.usage_unit_totals (
    key text not null,
    month date not null,
    scope text not null,
    units bigint not null,
    like headgate.usage_unit_amounts,
    primary key (key, month, scope)
);

drop table headgate.usage_unit_amounts;

-- Days are in UTC. The model is '' if it does not exist, as in the daily sums. One statement per key has better
-- estimates than one for all keys, and compiling it would take longer than running it.
create function headgate.queue_unit_sums() returns trigger language plpgsql set jit = off set work_mem = '64MB' as $$
declare
    summed_key text;
begin
    for summed_key in select key from headgate.usage_unit_keys order by key loop
        insert into headgate.usage_unit_queue (key, day, tenant, class, model, unit, requests, unsent, attempts,
                engine_us, tokens_in, tokens_cached, tokens_out, input_nano_usd, output_nano_usd, overhead_nano_usd,
                retries_nano_usd, charged_nano_usd, cost_nano_usd)
            select summed_key, (at at time zone 'UTC')::date as day, tenant, class,
                case when pool = '' and (class = '' or outcome in ('invalid_request', 'forbidden', 'unauthorized',
                    'key_unverified', 'model_not_found')) then '' else model end as sum_model,
                coalesce(metadata ->> summed_key, '') as unit,
                sum((attempt <= 1 and correction = 0 and pool <> '')::integer),
                sum((attempt <= 1 and correction = 0 and pool = '')::integer),
                sum((attempt > 0 and correction = 0)::integer),
                sum(input_us::numeric + output_us + overhead_us),
                sum(useful * tokens_in), sum(useful * tokens_cached), sum(useful * tokens_out),
                sum(useful * input_nano_usd), sum(useful * output_nano_usd), sum(useful * overhead_nano_usd),
                sum((1 - useful) * cost), sum(case when payer = 'tenant' then cost else 0 end), sum(cost)
            from added cross join lateral (values (
                (cause in ('answer', 'client_disconnected', 'deadline_exceeded', 'engine_rejected'))::integer,
                input_nano_usd::numeric + output_nano_usd + overhead_nano_usd
            )) as derived (useful, cost)
            group by 1, 2, 3, 4, 5, 6;
    end loop;
    return null;
end
$$;

-- Starts to sum a key, unless four keys are summed already or amounts of the key remain to be deleted. Returns whether
-- the key is summed. The table lock waits for transactions that are inserting rows and stops new ones, so each row is
-- either visible here, with its day in the backlog, or inserted with the trigger. The advisory lock waits for a process
-- that is dropping a day, so the backlog contains no day that is about to be dropped.
create function headgate.register_unit_key(new_key text) returns boolean language plpgsql as $$
begin
    if exists (select from headgate.usage_unit_keys where key = new_key) then
        return true;
    end if;
    -- Gateways ask again and again, so this must not wait for a lock.
    if (select count(*) from headgate.usage_unit_keys) >= 4 then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtext('headgate.unit_sums'));
    if exists (select from headgate.usage_unit_removed_keys where key = new_key) then
        return false;
    end if;
    lock table only headgate.usage in share row exclusive mode;
    if exists (select from headgate.usage_unit_keys where key = new_key) then
        return true;
    end if;
    if (select count(*) from headgate.usage_unit_keys) >= 4 then
        return false;
    end if;
    insert into headgate.usage_unit_keys (key) values (new_key);
    insert into headgate.usage_unit_backlog (key, day)
        select new_key, to_date(right(relname, 8), 'YYYYMMDD')
        from pg_inherits join pg_class on pg_class.oid = inhrelid
        where inhparent = 'headgate.usage'::regclass and relname ~ '^usage_[0-9]{8}$';
    if not exists (
        select from pg_trigger where tgrelid = 'headgate.usage'::regclass and tgname = 'queue_unit_sums'
    ) then
        create trigger queue_unit_sums after insert on headgate.usage
            referencing new table as added for each statement execute function headgate.queue_unit_sums();
    end if;
    return true;
end
$$;

-- Stops summing a key. Called by operators. Gateways then delete its sums in batches. The advisory lock keeps gateways
-- from adding a day of the key at the same time. The table lock waits for transactions that are inserting rows. It is
-- the strongest one from the start, because a transaction that is creating a partition could otherwise wait for this
-- one, and this one for that one when it drops the trigger.
create function headgate.remove_unit_key(old_key text) returns void language plpgsql set lock_timeout = '2s' as $$
begin
    perform pg_advisory_xact_lock(hashtext('headgate.unit_sums'));
    lock table only headgate.usage in access exclusive mode;
    delete from headgate.usage_unit_keys where key = old_key;
    if not found then
        return;
    end if;
    insert into headgate.usage_unit_removed_keys (key) values (old_key);
    delete from headgate.usage_unit_backlog where key = old_key;
    if not exists (select from headgate.usage_unit_keys) then
        drop trigger if exists queue_unit_sums on headgate.usage;
    end if;
end
$$;
