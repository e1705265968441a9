-- oldest schema: 2
--
-- Hourly sums of the usage rows of days that have been dropped (ledger.roll_up). The rows of a day are summed in the
-- transaction that drops them, so a row is in exactly one of the two tables. Hours start at the full hour, in UTC.

create table headgate.usage_hourly (
    hour timestamptz not null,
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
    primary key (hour, tenant, class, model, pool, payer, cause, outcome)
);
