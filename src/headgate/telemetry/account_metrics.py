"""Metric catalogue rows for keys and the ledger."""

from typing import Final

from headgate.telemetry.described import counter, gauge

_DATABASE: Final = "it has a [database](configuration.md#database)"
_LEDGER: Final = "it has a [ledger](configuration.md#ledger)"

ACCOUNTS: Final = (
    gauge(
        "headgate_directory_fresh",
        "",
        "1 while the copy of tenants and keys is known to be complete.",
        "At 0 known keys still work, and requests with unknown keys get 503.",
        when=_DATABASE,
    ),
    gauge(
        "headgate_directory_age_seconds",
        "",
        "Time since the database last confirmed that copy.",
        "Infinite if it never did.",
        when=_DATABASE,
    ),
    gauge("headgate_directory_tenants", "", "Tenants in the copy.", when=_DATABASE),
    gauge("headgate_directory_keys", "", "Keys in the copy.", when=_DATABASE),
    counter("headgate_directory_reconnects_total", "", "Reconnections to the database of keys.", when=_DATABASE),
    gauge("headgate_ledger_database_up", "", "1 while the ledger's database responds.", when=_LEDGER),
    counter("headgate_ledger_rows_written_total", "", "Rows of this process that the database has.", when=_LEDGER),
    gauge(
        "headgate_ledger_rows_waiting",
        "",
        "Rows that wait for the database, in memory and in the spool.",
        when=_LEDGER,
    ),
    gauge("headgate_ledger_spool_bytes", "", "Size of these rows in the spool on disk.", when=_LEDGER),
    gauge(
        "headgate_ledger_oldest_seconds",
        "",
        "Age of the oldest waiting row.",
        "Usually below a second.",
        when=_LEDGER,
    ),
    counter(
        "headgate_ledger_rows_lost_total",
        "why",
        "Rows that will never be in the database.",
        "`spool`: the spool was full or could not be written or read. `refused`: the database rejected their content, "
        "or they are too old to check whether it has them. Investigate any value above 0.",
        when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_open_requests",
        "",
        "Requests whose rows have not been created yet.",
        "The request or one of its attempts has not ended.",
        when=_LEDGER,
    ),
    counter(
        "headgate_ledger_unrecorded_total",
        "",
        "Attempts that were sent without a note on disk.",
        "The disk of the spool hung or failed, or the journal was full. Their rows are lost if the process is killed.",
        when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_disk_up",
        "",
        "1 while notes and rows can be written to the disk of the spool, 0 while it hangs or fails.",
        when=_LEDGER,
    ),
)
