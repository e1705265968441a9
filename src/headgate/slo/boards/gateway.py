"""Dashboards for the gateway process and its cell."""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, histogram_quantile, rate

CELL: Final = Dashboard(
    "headgate-cell",
    "Headgate: cell",
    (
        Panel(
            "Cell mode",
            (("max by (instance, mode) (headgate_cell_mode) == 1", "{{instance}}: {{mode}}"),),
            kind="stat",
        ),
        Panel("Leader", (("max by (instance) (headgate_cell_is_leader) == 1", "{{instance}}"),), kind="stat"),
        Panel(
            "Members",
            (
                (gauge("headgate_cell_members", aggregation="max")[0], "members"),
                (gauge("headgate_cell_members_absent", aggregation="max")[0], "absent"),
            ),
        ),
        Panel("Store up", (gauge("headgate_cell_store_up", "instance", aggregation="min"),)),
        Panel(
            "Store round trip", (gauge("headgate_cell_store_round_trip_seconds", "instance", aggregation="max"),), "s"
        ),
        Panel(
            "Store errors",
            (
                (rate("headgate_cell_store_reconnects_total", "instance")[0], "{{instance}} reconnects"),
                (rate("headgate_cell_store_timeouts_total", "instance")[0], "{{instance}} timeouts"),
                (rate("headgate_cell_entries_skipped_total", "instance")[0], "{{instance}} unreadable entries"),
            ),
        ),
        Panel("Unacknowledged messages", (gauge("headgate_cell_unacknowledged_messages", "instance"),)),
        Panel(
            "Leased shares",
            (
                (gauge("headgate_cell_share_leases", "instance")[0], "{{instance}} accounts"),
                (rate("headgate_cell_share_leases_expired_total", "instance")[0], "{{instance}} expired"),
                (gauge("headgate_cell_share_leases_lost", "instance", aggregation="max")[0], "{{instance}} lost"),
            ),
            description="Leased shares of limits. A process that has lost them applies the floor.",
        ),
        Panel(
            "Age of leased shares",
            (gauge("headgate_cell_share_renewal_age_seconds", "instance", aggregation="max"),),
            "s",
            description="Time since the share controller last renewed the shares of the process.",
        ),
        Panel("Island share divisor", (gauge("headgate_cell_share_divisor", "instance", aggregation="max"),)),
    ),
)

GATEWAY: Final = Dashboard(
    "headgate-gateway",
    "Headgate: gateway",
    (
        Panel(
            "Event loop lag",
            tuple(histogram_quantile("headgate_event_loop_lag_seconds", each, "instance") for each in (0.5, 0.99)),
            "s",
            description="Every stream is delayed by this lag.",
        ),
        Panel(
            "Longest event loop iteration",
            (gauge("headgate_event_loop_iteration_max_seconds", "instance", "clock", "window", aggregation="max"),),
            "s",
            description="Every stream is delayed for as long as an iteration lasts.",
        ),
        Panel("CPU", (rate("headgate_process_cpu_seconds_total", "instance"),), "percentunit"),
        Panel("Scheduler busy", (rate("headgate_scheduler_busy_seconds_total", "instance"),), "percentunit"),
        Panel("Resident memory", (gauge("headgate_process_resident_memory_bytes", "instance"),), "bytes"),
        Panel(
            "Tracked objects",
            (gauge("headgate_tracked_objects", "instance", "kind"),),
            description="The counts rise and fall with traffic.",
        ),
        Panel(
            "Configurations and versions",
            (
                (gauge("headgate_config_info", "hash", aggregation="count")[0], "configuration {{hash}}"),
                (gauge("headgate_build_info", "version", aggregation="count")[0], "version {{version}}"),
            ),
            kind="stat",
            description="If the number of configurations stays above 1, a reload did not reach every gateway.",
        ),
        Panel(
            "Configuration reload",
            (
                (
                    gauge("headgate_config_reload_successful", "instance", aggregation="min")[0],
                    "{{instance}} files valid",
                ),
                (
                    gauge("headgate_config_restart_needed", "instance", aggregation="max")[0],
                    "{{instance}} changed settings that need a restart",
                ),
            ),
            description="If the files are invalid, the previous configuration stays in force.",
        ),
        Panel(
            "Age of the configuration",
            (("time() - max by (instance) (headgate_config_applied_timestamp_seconds)", "{{instance}}"),),
            "s",
        ),
        Panel(
            "Verified keys by secret",
            ((rate("headgate_keys_verified_total", "secret")[0], "{{secret}}"),),
            description="After a rotation, remove the old secret once no keys are verified with it.",
        ),
        Panel(
            "Issuer tokens",
            (
                (rate("headgate_tokens_accepted_total", "issuer")[0], "{{issuer}} accepted"),
                (rate("headgate_tokens_rejected_total", "reason")[0], "rejected ({{reason}})"),
            ),
            description="Tokens are rejected as unverified while the keys of their issuer cannot be read.",
        ),
        Panel(
            "Issuer keys",
            (
                (gauge("headgate_issuer_keys", "instance", "issuer")[0], "{{instance}} {{issuer}} keys"),
                (
                    gauge("headgate_issuer_keys_age_seconds", "instance", "issuer", aggregation="max")[0],
                    "{{instance}} {{issuer}} age (s)",
                ),
                (
                    rate("headgate_issuer_key_read_failures_total", "instance", "issuer")[0],
                    "{{instance}} {{issuer}} failed reads",
                ),
            ),
        ),
        Panel(
            "Directory replica",
            (
                (gauge("headgate_directory_fresh", "instance", aggregation="min")[0], "{{instance}} fresh"),
                (gauge("headgate_directory_age_seconds", "instance", aggregation="max")[0], "{{instance}} age (s)"),
                (rate("headgate_directory_reconnects_total", "instance")[0], "{{instance}} reconnects"),
            ),
        ),
        Panel(
            "Ledger rows",
            (
                (rate("headgate_ledger_rows_written_total", "instance")[0], "{{instance}} written"),
                (gauge("headgate_ledger_rows_waiting", "instance")[0], "{{instance}} waiting"),
                (gauge("headgate_ledger_open_requests", "instance")[0], "{{instance}} open requests"),
                (rate("headgate_ledger_rows_lost_total", "instance", "reason")[0], "{{instance}} lost ({{reason}})"),
                (
                    rate("headgate_ledger_attempts_unjournaled_total", "instance")[0],
                    "{{instance}} sent without a journal entry",
                ),
            ),
        ),
        Panel(
            "Ledger database",
            (
                (gauge("headgate_ledger_database_up", "instance", aggregation="min")[0], "{{instance}} database up"),
                (gauge("headgate_ledger_disk_up", "instance", aggregation="min")[0], "{{instance}} disk writable"),
                (
                    gauge("headgate_ledger_oldest_row_age_seconds", "instance", aggregation="max")[0],
                    "{{instance}} oldest row (s)",
                ),
                (
                    gauge("headgate_ledger_unit_sums_age_seconds", "instance", aggregation="max")[0],
                    "{{instance}} oldest row outside the unit sums (s)",
                ),
                (
                    gauge("headgate_ledger_unit_sums_days", "instance", aggregation="max")[0],
                    "{{instance}} days outside the unit sums",
                ),
            ),
        ),
        Panel(
            "Traces",
            (
                (rate("headgate_traces_kept_total", "reason")[0], "kept ({{reason}})"),
                (rate("headgate_traces_exported_total")[0], "exported"),
                (rate("headgate_traces_dropped_total", "reason")[0], "dropped ({{reason}})"),
                (rate("headgate_trace_exports_failed_total")[0], "failed exports"),
                (gauge("headgate_traces_waiting")[0], "waiting"),
            ),
        ),
        Panel(
            "Request records",
            (
                (rate("headgate_records_written_total", "instance")[0], "{{instance}} written"),
                (rate("headgate_records_dropped_total", "instance")[0], "{{instance}} dropped"),
                (gauge("headgate_records_waiting", "instance")[0], "{{instance}} waiting"),
            ),
        ),
        Panel("Request record storage", (gauge("headgate_records_bytes", "instance", aggregation="max"),), "bytes"),
        Panel(
            "Oldest request record age",
            (gauge("headgate_records_oldest_age_seconds", "instance", aggregation="max"),),
            "s",
        ),
        Panel(
            "TLS handshake failures",
            (rate("headgate_tls_handshake_failures_total", "listener", "reason"),),
            "reqps",
            description="A rise in `rejected_by_client` after a rotation means that clients do not trust the issuer.",
        ),
        Panel(
            "Certificates",
            (
                (
                    gauge("headgate_tls_certificate_expires_in_seconds", "instance", "listener", aggregation="min")[0],
                    "{{instance}} {{listener}} expires in",
                ),
                (
                    gauge("headgate_tls_certificate_reload_failed", "instance", "listener", aggregation="max")[0],
                    "{{instance}} {{listener}} reload failed (1)",
                ),
            ),
            "s",
        ),
        Panel("Ledger spool size", (gauge("headgate_ledger_spool_bytes", "instance"),), "bytes"),
    ),
)
