"""Alerts on the gateway process, its cell, the ledger and the directory."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.durations import HOUR, MINUTE, DurationFormat

LOOP_LAG_S_MAX: Final = 0.1
LEDGER_ROW_AGE_S_MAX: Final = 300
CERTIFICATE_EXPIRES_S: Final = 14 * 24 * HOUR
CERTIFICATE_EXPIRES_SOON_S: Final = 24 * HOUR


def process_alerts(length: DurationFormat) -> Iterator[Alert]:
    yield Alert(
        "HeadgateDown",
        "absent(headgate_build_info)",
        Severity.PAGE,
        "gateway_down",
        "no gateway is being scraped",
        "No gateway is running, or Prometheus cannot reach it. Check with `headgate status --url http://HOST:9090`.",
        for_s=2 * MINUTE,
    )
    lag = f"sum by (instance, le) (rate(headgate_event_loop_lag_seconds_bucket[{length(5 * MINUTE)}]))"
    yield Alert(
        "HeadgateEventLoopLag",
        f"histogram_quantile(0.99, {lag}) > {LOOP_LAG_S_MAX:g}",
        Severity.PAGE,
        "scheduler_behind",
        "{{ $labels.instance }}: the event loop is lagging by {{ $value | humanizeDuration }}",
        "Every stream is delayed by this lag. `headgate doctor --live` shows whether the process is short of CPU time.",
        for_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateConfigMismatch",
        "count(count by (hash) (headgate_config_info)) > 1",
        Severity.TICKET,
        "config_mismatch",
        "gateways are running {{ $value }} different configurations",
        "A reload reached only some gateways, or one rejected it. `headgate status` shows each hash and the reason.",
        for_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateTracesDropped",
        # Traces beyond `traces_per_second_max` are dropped intentionally.
        'sum by (reason) (increase(headgate_traces_dropped_total{reason!="rate_limited"}'
        f"[{length(15 * MINUTE)}])) > 0",
        Severity.TICKET,
        "traces_dropped",
        "{{ $value | humanize }} traces lost in 15 minutes ({{ $labels.reason }})",
        "The trace collector is slow or unreachable. Requests are not affected. `headgate status` shows its address.",
    )
    yield Alert(
        "HeadgateRecordsDropped",
        f"sum(increase(headgate_records_dropped_total[{length(15 * MINUTE)}])) > 0",
        Severity.TICKET,
        "records_dropped",
        "{{ $value | humanize }} request records lost in 15 minutes",
        "`headgate explain` cannot show these requests. Check the disk that holds `records.directory`.",
    )


def certificate_alerts() -> Iterator[Alert]:
    expires = "min by (instance, listener) (headgate_tls_certificate_expires_in_seconds)"
    yield Alert(
        "HeadgateCertificateExpires",
        f"{expires} < {CERTIFICATE_EXPIRES_S}",
        Severity.TICKET,
        "certificate_expires",
        "{{ $labels.instance }}: the certificate of {{ $labels.listener }} expires in {{ $value | humanizeDuration }}",
        "Renew it. The gateway reads the new files without a restart. `headgate status` shows the date.",
        for_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateCertificateExpiresToday",
        f"{expires} < {CERTIFICATE_EXPIRES_SOON_S}",
        Severity.PAGE,
        "certificate_expires",
        "{{ $labels.instance }}: the certificate of {{ $labels.listener }} expires today or has expired",
        "Clients refuse to connect once it has expired. Renew it; the gateway reads the new files without a restart.",
        for_s=MINUTE,
    )
    yield Alert(
        "HeadgateCertificateReloadFailed",
        "max by (instance, listener) (headgate_tls_certificate_reload_failed) == 1",
        Severity.TICKET,
        "certificate_expires",
        "{{ $labels.instance }}: the new certificate of {{ $labels.listener }} cannot be used",
        "The previous certificate stays in use. `headgate status` shows what is wrong with the files.",
        for_s=5 * MINUTE,
    )


def cell_alerts() -> Iterator[Alert]:
    yield Alert(
        "HeadgateCellIsland",
        'max by (instance) (headgate_cell_mode{mode="island"}) == 1',
        Severity.PAGE,
        "cell_island",
        "{{ $labels.instance }} is running as an island, limited to its share",
        "The gateway cannot reach a scheduler. Its `headgate status` shows its share and the state of the store.",
        for_s=2 * MINUTE,
    )
    yield Alert(
        "HeadgateCellStoreDown",
        "min by (instance) (headgate_cell_store_up) == 0",
        Severity.PAGE,
        "cell_store_down",
        "{{ $labels.instance }}: the cell's store is not responding",
        "Gateways keep running as islands. `headgate doctor` checks the store.",
        for_s=MINUTE,
    )
    yield Alert(
        "HeadgateCellMembersAbsent",
        "max(headgate_cell_members_absent) > 0",
        Severity.TICKET,
        "cell_members_absent",
        "{{ $value }} of the cell's gateways are not responding",
        "Their shares stay reserved, so the other gateways have less. The scheduler's `headgate status` lists them.",
        for_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateCellShareLeasesLost",
        "max by (instance) (headgate_cell_share_leases_lost) == 1",
        Severity.PAGE,
        "cell_share_leases_lost",
        "{{ $labels.instance }}: leased shares of limits have expired, so tenants have only the floor",
        "Check `headgate cells run`. `headgate cells status` shows which gateways it reaches.",
        for_s=MINUTE,
    )


def database_alerts(length: DurationFormat) -> Iterator[Alert]:
    yield Alert(
        "HeadgateLedgerRowsLost",
        f"sum by (reason) (increase(headgate_ledger_rows_lost_total[{length(HOUR)}])) > 0",
        Severity.TICKET,
        "ledger_rows_lost",
        "{{ $value | humanize }} ledger rows lost permanently ({{ $labels.reason }})",
        "Their cost is missing from reports. `headgate status` and the log show the reason.",
    )
    yield Alert(
        "HeadgateLedgerBehind",
        f"max by (instance) (headgate_ledger_oldest_row_age_seconds) > {LEDGER_ROW_AGE_S_MAX}",
        Severity.TICKET,
        "ledger_behind",
        "{{ $labels.instance }}: the oldest ledger row has waited {{ $value | humanizeDuration }} for the database",
        "Nothing is lost while the spool has room. `headgate status` shows what is wrong with the database.",
        for_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateLedgerDatabaseDown",
        "min by (instance) (headgate_ledger_database_up) == 0",
        Severity.TICKET,
        "ledger_behind",
        "{{ $labels.instance }}: the ledger database is not responding",
        "Rows are kept in the spool, and budgets use the last known values. `headgate doctor` checks the database.",
        for_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateDirectoryStale",
        "min by (instance) (headgate_directory_fresh) == 0",
        Severity.PAGE,
        "directory_stale",
        "{{ $labels.instance }}: the tenant and key replica may be out of date",
        "Known keys keep working; unknown keys get a 503. `headgate status` shows the reason.",
        for_s=2 * MINUTE,
    )
