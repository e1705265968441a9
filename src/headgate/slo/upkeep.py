"""When is something wrong with the gateway itself, its cell, or what it depends on?"""

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
        "no gateway tells anything",
        "None runs, or Prometheus cannot reach its listener: `headgate status --url http://HOST:9090` says which.",
        lasting_s=2 * MINUTE,
    )
    lag = f"sum by (instance, le) (rate(headgate_loop_lag_seconds_bucket[{length(5 * MINUTE)}]))"
    yield Alert(
        "HeadgateLoopLag",
        f"histogram_quantile(0.99, {lag}) > {LAG_S_MAX:g}",
        Severity.PAGE,
        "scheduler_behind",
        "{{ $labels.instance }}: its event loop is late by {{ $value | humanizeDuration }}",
        "Every stream it carries is late by as much. `headgate doctor --live` says whether it is short of processor.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateConfigurationsDiffer",
        "count(count by (hash) (headgate_config_info)) > 1",
        Severity.TICKET,
        "configurations_differ",
        "gateways run {{ $value }} different configurations",
        "A reload reached only some, or one refused it. `headgate status` of each has its hash and why.",
        lasting_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateTracesDropped",
        # Those beyond `kept_per_second_max` are left out on purpose.
        f'sum by (why) (increase(headgate_traces_dropped_total{{why!="too_many"}}[{length(15 * MINUTE)}])) > 0',
        Severity.TICKET,
        "traces_dropped",
        "{{ $value | humanize }} traces were lost within 15 minutes ({{ $labels.why }})",
        "Their collector does not keep up, or is away. Requests do not suffer. `headgate status` has its address.",
    )
    yield Alert(
        "HeadgateRecordsDropped",
        f"sum(increase(headgate_records_dropped_total[{length(15 * MINUTE)}])) > 0",
        Severity.TICKET,
        "records_dropped",
        "{{ $value | humanize }} records of requests were dropped within 15 minutes",
        "`headgate explain` will not know these requests. Look at the disk of `records.folder`.",
    )


def cell_alerts() -> Iterator[Alert]:
    yield Alert(
        "HeadgateCellIsland",
        'max by (instance) (headgate_cell_mode{mode="island"}) == 1',
        Severity.PAGE,
        "cell_island",
        "{{ $labels.instance }} decides by itself, with its share",
        "It hears of no scheduler. `headgate status` of it says since when, and of which scheduler it heard last.",
        lasting_s=2 * MINUTE,
    )
    yield Alert(
        "HeadgateCellStoreDown",
        "min by (instance) (headgate_cell_store_up) == 0",
        Severity.PAGE,
        "cell_store_down",
        "{{ $labels.instance }}: the store of the cell does not answer",
        "Gateways go on as islands. `headgate doctor` asks the store by itself.",
        lasting_s=MINUTE,
    )
    yield Alert(
        "HeadgateCellMembersAbsent",
        "max(headgate_cell_members_absent) > 0",
        Severity.TICKET,
        "cell_members_absent",
        "{{ $value }} gateways of the cell do not answer",
        "Their shares are kept free, so the others have less. `headgate status` of the scheduler names them.",
        lasting_s=5 * MINUTE,
    )


def database_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateLedgerRowsLost",
        f"sum by (why) (increase(headgate_ledger_rows_lost_total[{length(HOUR)}])) > 0",
        Severity.TICKET,
        "ledger_rows_lost",
        "{{ $value | humanize }} rows of the ledger are lost for good ({{ $labels.why }})",
        "What they cost is in no report. `headgate status` and the log say why.",
    )
    yield Alert(
        "HeadgateLedgerBehind",
        f"max by (instance) (headgate_ledger_oldest_seconds) > {LEDGER_S_MAX}",
        Severity.TICKET,
        "ledger_behind",
        "{{ $labels.instance }}: a row has waited for the database for {{ $value | humanizeDuration }}",
        "Nothing is lost while the spool has room. `headgate status` says what is wrong with the database.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateLedgerDatabaseDown",
        "min by (instance) (headgate_ledger_database_up) == 0",
        Severity.TICKET,
        "ledger_behind",
        "{{ $labels.instance }}: the database of the ledger does not answer",
        "Rows wait in the spool; budgets go by what was last known. `headgate doctor` asks the database by itself.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateDirectoryStale",
        "min by (instance) (headgate_directory_fresh) == 0",
        Severity.PAGE,
        "directory_stale",
        "{{ $labels.instance }}: its copy of tenants and keys is not known to be whole",
        "Known keys go on working, unknown ones are answered with 503. `headgate status` says why.",
        lasting_s=2 * MINUTE,
    )
