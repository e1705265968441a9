"""Alerts on the gateway process, its cell, the ledger and the directory."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.lengths import HOUR, MINUTE, Length

LAG_S_MAX: Final = 0.1
LEDGER_S_MAX: Final = 300


def process_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateAbsent",
        "absent(headgate_build_info)",
        Severity.PAGE,
        "gateway_absent",
        "no gateway is being scraped",
        "No gateway runs, or Prometheus cannot reach it. Check with `headgate status --url http://HOST:9090`.",
        lasting_s=2 * MINUTE,
    )
    lag = f"sum by (instance, le) (rate(headgate_loop_lag_seconds_bucket[{length(5 * MINUTE)}]))"
    yield Alert(
        "HeadgateLoopLag",
        f"histogram_quantile(0.99, {lag}) > {LAG_S_MAX:g}",
        Severity.PAGE,
        "scheduler_behind",
        "{{ $labels.instance }}: the event loop lags by {{ $value | humanizeDuration }}",
        "The lag delays every stream. `headgate doctor --live` shows whether the process lacks CPU time.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateConfigurationsDiffer",
        "count(count by (hash) (headgate_config_info)) > 1",
        Severity.TICKET,
        "configurations_differ",
        "gateways run {{ $value }} different configurations",
        "A reload reached only some gateways, or one rejected it. `headgate status` shows each hash and the reason.",
        lasting_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateTracesDropped",
        # Traces beyond `kept_per_second_max` are dropped on purpose.
        f'sum by (why) (increase(headgate_traces_dropped_total{{why!="too_many"}}[{length(15 * MINUTE)}])) > 0',
        Severity.TICKET,
        "traces_dropped",
        "{{ $value | humanize }} traces lost in 15 minutes ({{ $labels.why }})",
        "The trace collector is slow or unreachable. Requests are not affected. `headgate status` shows its address.",
    )
    yield Alert(
        "HeadgateRecordsDropped",
        f"sum(increase(headgate_records_dropped_total[{length(15 * MINUTE)}])) > 0",
        Severity.TICKET,
        "records_dropped",
        "{{ $value | humanize }} request records lost in 15 minutes",
        "`headgate explain` does not have these requests. Check the disk of `records.folder`.",
    )


def cell_alerts() -> Iterator[Alert]:
    yield Alert(
        "HeadgateCellIsland",
        'max by (instance) (headgate_cell_mode{mode="island"}) == 1',
        Severity.PAGE,
        "cell_island",
        "{{ $labels.instance }} runs as an island, limited to its share",
        "The gateway cannot reach a scheduler. Its `headgate status` shows since when and the last known scheduler.",
        lasting_s=2 * MINUTE,
    )
    yield Alert(
        "HeadgateCellStoreDown",
        "min by (instance) (headgate_cell_store_up) == 0",
        Severity.PAGE,
        "cell_store_down",
        "{{ $labels.instance }}: the cell's store does not respond",
        "Gateways continue as islands. `headgate doctor` checks the store.",
        lasting_s=MINUTE,
    )
    yield Alert(
        "HeadgateCellMembersAbsent",
        "max(headgate_cell_members_absent) > 0",
        Severity.TICKET,
        "cell_members_absent",
        "{{ $value }} gateways of the cell do not respond",
        "The scheduler keeps their shares free, so the others have less. Its `headgate status` names them.",
        lasting_s=5 * MINUTE,
    )


def database_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateLedgerRowsLost",
        f"sum by (why) (increase(headgate_ledger_rows_lost_total[{length(HOUR)}])) > 0",
        Severity.TICKET,
        "ledger_rows_lost",
        "{{ $value | humanize }} ledger rows lost permanently ({{ $labels.why }})",
        "Reports do not include their cost. `headgate status` and the log show the reason.",
    )
    yield Alert(
        "HeadgateLedgerBehind",
        f"max by (instance) (headgate_ledger_oldest_seconds) > {LEDGER_S_MAX}",
        Severity.TICKET,
        "ledger_behind",
        "{{ $labels.instance }}: the oldest ledger row has waited {{ $value | humanizeDuration }} for the database",
        "Nothing is lost while the spool has room. `headgate status` shows the database problem.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateLedgerDatabaseDown",
        "min by (instance) (headgate_ledger_database_up) == 0",
        Severity.TICKET,
        "ledger_behind",
        "{{ $labels.instance }}: the ledger's database does not respond",
        "Rows wait in the spool, and budgets use the last known values. `headgate doctor` checks the database.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateDirectoryStale",
        "min by (instance) (headgate_directory_fresh) == 0",
        Severity.PAGE,
        "directory_stale",
        "{{ $labels.instance }}: the replica of tenants and keys may be out of date",
        "Known keys still work; unknown keys get 503. `headgate status` shows the reason.",
        lasting_s=2 * MINUTE,
    )
