"""Metric catalogue rows for keys, tokens and the ledger."""

from typing import Final

from headgate.telemetry.metric_definition import counter, gauge

_DATABASE: Final = "the gateway has a [database](configuration.md#database)"
_ISSUERS: Final = "the configuration has [issuers](configuration.md#identityissuersname)"
_LEDGER: Final = "the gateway has a [ledger](configuration.md#ledger)"

ACCOUNTS: Final = (
    gauge(
        "headgate_directory_fresh",
        "",
        "1 if the tenant and key replica is known to be current, otherwise 0.",
        "While the value is 0, known keys keep working, but requests with unknown keys get a 503.",
        exposed_when=_DATABASE,
    ),
    gauge(
        "headgate_directory_age_seconds",
        "",
        "Time since the tenant and key replica was last confirmed to be current.",
        "Infinite until the first confirmation.",
        exposed_when=_DATABASE,
    ),
    gauge("headgate_directory_tenants", "", "Tenants in the directory replica.", exposed_when=_DATABASE),
    gauge("headgate_directory_keys", "", "Keys in the directory replica.", exposed_when=_DATABASE),
    counter(
        "headgate_directory_reconnects_total",
        "",
        "Reconnections to the tenant and key database.",
        exposed_when=_DATABASE,
    ),
    counter(
        "headgate_tokens_accepted_total",
        "issuer",
        "Requests authenticated by an issuer's token.",
        exposed_when=_ISSUERS,
    ),
    counter(
        "headgate_tokens_rejected_total",
        "reason",
        "Rejected tokens by reason.",
        "The [guide](../guides/sign-in.md#rejected-tokens) explains the reasons.",
        exposed_when=_ISSUERS,
    ),
    gauge("headgate_issuer_keys", "issuer", "Usable public keys of a token issuer.", exposed_when=_ISSUERS),
    gauge(
        "headgate_issuer_keys_age_seconds",
        "issuer",
        "Time since the keys of a token issuer were last read.",
        "Infinite until the first read. Keys older than `key_retention` are not used.",
        exposed_when=_ISSUERS,
    ),
    counter(
        "headgate_issuer_key_read_failures_total",
        "issuer",
        "Failed reads of the keys of a token issuer.",
        "`headgate status` shows the reason. Keys that were read earlier stay in use for `key_retention`.",
        exposed_when=_ISSUERS,
    ),
    gauge(
        "headgate_ledger_database_up", "", "1 if the ledger database is responding, otherwise 0.", exposed_when=_LEDGER
    ),
    counter(
        "headgate_ledger_rows_written_total",
        "",
        "Ledger rows that this process has written to the database.",
        exposed_when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_rows_waiting",
        "",
        "Ledger rows waiting to be written to the database, in memory and in the spool.",
        exposed_when=_LEDGER,
    ),
    gauge("headgate_ledger_spool_bytes", "", "Size of the ledger's spool on disk.", exposed_when=_LEDGER),
    gauge(
        "headgate_ledger_oldest_row_age_seconds",
        "",
        "Age of the oldest ledger row waiting to be written to the database.",
        "Usually below one second.",
        exposed_when=_LEDGER,
    ),
    counter(
        "headgate_ledger_rows_lost_total",
        "reason",
        "Ledger rows lost permanently, by reason.",
        "`spool`: the spool was full or could not be written or read. `rejected`: the database rejected the rows, or "
        "they are too old for the gateway to tell whether the database already has them. Investigate any value "
        "above 0.",
        exposed_when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_open_requests",
        "",
        "Open requests, whose ledger rows have not been created yet.",
        "A request stays open until it and all of its attempts have ended.",
        exposed_when=_LEDGER,
    ),
    counter(
        "headgate_ledger_attempts_unjournaled_total",
        "",
        "Attempts sent without a journal entry on disk.",
        "This happens when the spool's disk hangs or fails, or when the journal is full. If the process is killed, the "
        "ledger rows for these attempts are lost.",
        exposed_when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_disk_up",
        "",
        "1 if the spool's disk is writable, 0 if writes hang or fail.",
        exposed_when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_unit_sums_age_seconds",
        "",
        "Age of the oldest usage row in the database that is not in the sums by business unit.",
        "Usually below 20 seconds. Reports by unit stay complete, but take longer.",
        exposed_when=_LEDGER,
    ),
    gauge(
        "headgate_ledger_unit_sums_days",
        "",
        "Days whose existing usage rows have not been added to the sums by business unit yet.",
        "Above 0 for a while after `ledger.unit_key` has been set or changed.",
        exposed_when=_LEDGER,
    ),
)
