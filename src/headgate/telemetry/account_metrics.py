"""Metric catalogue rows for keys and the ledger."""

from typing import Final

from headgate.telemetry.described import counter, gauge

_DATABASE: Final = "the gateway has a [database](configuration.md#database)"
_LEDGER: Final = "the gateway has a [ledger](configuration.md#ledger)"

ACCOUNTS: Final = (
    gauge(
        "headgate_directory_fresh",
        "",
        "1 if the replica of tenants and keys is known to be current, otherwise 0.",
        "While it is 0, known keys still work, and requests with unknown keys get 503.",
        when=_DATABASE,
    ),
    gauge(
        "headgate_directory_age_seconds",
        "",
        "Time since the database last confirmed the replica of tenants and keys.",
        "Infinite if the database has not confirmed it yet.",
        when=_DATABASE,
    ),
    gauge("headgate_directory_tenants", "", "Tenants in the replica of the directory.", when=_DATABASE),
    gauge("headgate_directory_keys", "", "Keys in the replica of the directory.", when=_DATABASE),
    counter(
        "headgate_directory_reconnects_total", "", "Reconnections to the database of tenants and keys.", when=_DATABASE
    ),
    gauge("headgate_ledger_database_up", "", "1 if the ledger's database responds, otherwise 0.", when=_LEDGER),
    counter(
        "headgate_ledger_rows_written_total", "", "Ledger rows of this process written to the database.", when=_LEDGER
    ),
    gauge(
        "headgate_ledger_rows_waiting",
        "",
        "Ledger rows waiting for the database, in memory and in the spool.",
        when=_LEDGER,
    ),
    gauge("headgate_ledger_spool_bytes", "", "Size of the ledger's spool on disk.", when=_LEDGER),
    gauge(
        "headgate_ledger_oldest_seconds",
        "",
        "Age of the oldest ledger row waiting for the database.",
        "Usually below one second.",
        when=_LEDGER,
    ),
    counter(
        "headgate_ledger_rows_lost_total",
        "why",
        "Ledger rows lost permanently, by reason.",
        "`spool`: the spool was full or could not be written or read. `refused`: the database rejected the rows, or "
        "they are too old to check whether the database already has them. Investigate any value above 0.",
        when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_open_requests",
        "",
        "Requests whose ledger rows have not been created yet.",
        "The request or one of its attempts is still running.",
        when=_LEDGER,
    ),
    counter(
        "headgate_ledger_unrecorded_total",
        "",
        "Attempts sent without a journal entry on disk.",
        "The spool's disk hung or failed, or the journal was full. The ledger rows of these attempts are lost if the "
        "process is killed.",
        when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_disk_up",
        "",
        "1 if the spool's disk is writable, 0 if it hangs or fails.",
        when=_LEDGER,
    ),
)
