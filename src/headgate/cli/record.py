"""Record traffic as an anonymous trace that can be replayed.

The sources are running gateways, the record files of gateways, and access logs of other programs. All of them yield the
same rows (`ports/traffic.py`), which are made anonymous as they are written.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from headgate.cli.input.admin_request import duration_s
from headgate.cli.input.argument_types import add_config, add_json, count
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.cli.input.admin_request import AdminTarget
    from headgate.cli.input.live_traffic import LiveTraffic
    from headgate.cli.output.recording_summary import RecordingSummary
    from headgate.planning.recording.import_csv import ImportCounts
    from headgate.planning.recording.trace_writer import TraceWriter
    from headgate.ports.traffic import TrafficRow

IMPORTS: Final = ("otel", "litellm", "csv")
EPILOG: Final = """\
The trace contains arrival times, sizes, classes, models and hashed tenants, but no text, keys or request ids.
`headgate simulate` and `headgate loadtest` replay it. docs/reference/traces.md describes the file.
The exit code is 1 if requests are missing from the trace, and 2 if a source or an argument is invalid.
"""
_PERMISSIONS: Final = "read,record"
_LIVE_S: Final = 60
_PROGRESS_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "file", type=Path, metavar="TRACE.jsonl", help="Trace to write; compressed if the name ends in .gz."
    )
    sources = parser.add_argument_group("source").add_mutually_exclusive_group()
    sources.add_argument(
        "--recent", action="store_true", help="Record the requests in the gateway's memory instead of future ones."
    )
    sources.add_argument("--from-records", type=Path, metavar="DIR", help="Read record files (records.directory).")
    sources.add_argument(
        "--import",
        dest="imported",
        nargs=2,
        metavar=("FORMAT", "FILE"),
        help=f"Import an access log. FORMAT is one of {', '.join(IMPORTS)}.",
    )
    _add_gateway(parser.add_argument_group("gateway"))
    _add_trace(parser.add_argument_group("trace"))
    add_config(parser)
    add_json(parser)


def _add_gateway(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--duration",
        type=duration_s,
        metavar="DURATION",
        help="Length of the recording, such as 15m or 12h (default 60s); with --from-records, the last part of the "
        "records (default: all).",
    )
    group.add_argument(
        "--wait",
        type=duration_s,
        default=60,
        metavar="DURATION",
        help="Time to wait for requests that are open at the end (default 60s).",
    )
    group.add_argument(
        "--url",
        action="append",
        metavar="URL",
        help="A gateway's admin listener, repeatable: all of them are merged (default: HEADGATE_ADMIN_URL, then "
        "admin_listen in --config).",
    )


def _add_trace(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--columns",
        default="",
        metavar="FIELD=COLUMN,...",
        help="Columns or span attributes to import, such as at=started,tenant=team (default: those of the format).",
    )
    group.add_argument("--keep-tenants", action="store_true", help="Keep the names of tenants instead of hashing them.")
    group.add_argument("--keep-date", action="store_true", help="Keep the calendar time of the start.")
    group.add_argument(
        "--limit", type=count, default=1_000_000, metavar="N", help="Maximum number of requests (default 1000000)."
    )


def run(args: argparse.Namespace) -> int:
    from headgate.cli.input.admin_request import AdminRequestFailed, print_failure, print_json
    from headgate.simulation.workload.error import WorkloadError

    try:
        _check_options(args)
        offline = args.imported is not None or args.from_records is not None
        summary = _record_files(args) if offline else _record_gateways(args)
    except AdminRequestFailed as problem:
        return print_failure(problem)
    except WorkloadError as problem:
        print(f"headgate record: {escaped(str(problem))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headgate record: stopped; no trace was written", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"headgate record: {escaped(where)}{error.strerror}", file=sys.stderr)
        return 2
    if args.json:
        print_json(summary.json())
    else:
        print("\n".join(map(escaped, summary.lines())))
    for warning in summary.warnings:
        print(f"warning: {escaped(warning)}", file=sys.stderr)
    return 1 if summary.warnings else 0


def _check_options(args: argparse.Namespace) -> None:
    """Rejects options that are invalid for the source or have no effect with it."""
    from headgate.edge.admin.traffic import DURATION_S_MAX
    from headgate.simulation.workload.error import WorkloadError

    if args.imported is not None and args.imported[0] not in IMPORTS:
        raise WorkloadError(f"--import: unknown format {args.imported[0]!a}; use one of {', '.join(IMPORTS)}")
    offline = args.imported is not None or args.from_records is not None
    for name, given, valid in (
        ("--url", args.url, not offline),
        ("--duration", args.duration, args.imported is None and not args.recent),
        ("--columns", args.columns, args.imported is not None),
    ):
        if given and not valid:
            raise WorkloadError(f"{name} has no effect with this source; remove it")
    if args.imported is not None:
        _check_log(Path(args.imported[1]), args.file)
    if not offline and (args.duration or 0) > DURATION_S_MAX:
        raise WorkloadError(f"--duration is longer than {DURATION_S_MAX // 86_400}d; record shorter periods")


def _check_log(log: Path, trace: Path) -> None:
    """Rejects logs that cannot be read twice, or that the trace would replace."""
    from headgate.simulation.workload.error import WorkloadError

    if not log.exists():
        return  # The reader reports it.
    if not log.is_file():
        raise WorkloadError(f"{log} is not a regular file; it is read twice, so save the log to a file first")
    if trace.exists() and trace.samefile(log):
        raise WorkloadError(f"{trace} is the log itself; specify another file for the trace")


def _writer(args: argparse.Namespace, file: IO[bytes], source: str, start_s: float) -> "TraceWriter":
    """`start_s` is the Unix time of the start."""
    from datetime import UTC, datetime

    from msgspec import UNSET

    from headgate.planning.recording.pseudonyms import TenantPseudonyms
    from headgate.planning.recording.trace_writer import TraceWriter
    from headgate.simulation.workload.recorded_trace import TraceHeader

    start = datetime.fromtimestamp(start_s, UTC).isoformat(timespec="seconds") if args.keep_date else UNSET
    header = TraceHeader(source=source, tenants="named" if args.keep_tenants else "hashed", start=start)
    return TraceWriter(file, header, TenantPseudonyms(keep_names=args.keep_tenants), requests_max=args.limit)


# Files


def _record_files(args: argparse.Namespace) -> "RecordingSummary":
    """Reads the source twice: first for the time of the earliest request, which becomes 0."""
    from msgspec.structs import replace

    from headgate.cli.output.recording_summary import RecordingSummary
    from headgate.planning.recording.import_csv import ImportCounts
    from headgate.planning.recording.trace_writer import trace_file
    from headgate.simulation.workload.error import WorkloadError

    counts, warnings = ImportCounts(), list[str]()
    source, rows = _stored(args, warnings) if args.imported is None else _imported(args, counts)
    zero_us = min((each.at_us for each in rows()), default=None)
    if zero_us is None:
        skipped = f"; {counts.skipped} others are not requests to a language model" if counts.skipped else ""
        raise WorkloadError(f"the source contains no requests{skipped}; check the file and its format")
    counts.skipped = 0
    warnings.clear()
    with trace_file(args.file) as file:
        writer = _writer(args, file, source, zero_us / 1e6)
        full = False
        for row in rows():
            if full := writer.is_full:
                break
            writer.add(replace(row, at_us=row.at_us - zero_us))
        if full:
            warnings.append(_limit_warning(args))
        totals = writer.finish(complete=not warnings)
    return RecordingSummary(args.file, source, writer, totals, counts.skipped, warnings)


def _stored(args: argparse.Namespace, warnings: list[str]) -> "tuple[str, Callable[[], Iterator[TrafficRow]]]":
    from headgate.simulation.workload.error import WorkloadError
    from headgate.telemetry.recording.stored_traffic import StoredTraffic

    if not args.from_records.is_dir():
        raise WorkloadError(f"{args.from_records} is not a directory; use the value of records.directory")
    stored = StoredTraffic(args.from_records, args.duration)

    def rows() -> "Iterator[TrafficRow]":
        yield from stored.rows()
        if stored.unreadable:
            warnings.append(f"{stored.unreadable} record files or blocks are damaged and were left out")

    return "records", rows


def _imported(args: argparse.Namespace, counts: "ImportCounts") -> "tuple[str, Callable[[], Iterator[TrafficRow]]]":
    from headgate.planning.recording.import_csv import PLAIN_COLUMNS, csv_rows, parse_columns
    from headgate.planning.recording.import_litellm import litellm_rows
    from headgate.planning.recording.import_otel import otel_rows

    name, path = args.imported[0], Path(args.imported[1])
    columns = parse_columns(args.columns) if args.columns else {}
    match name:
        case "otel":
            return name, lambda: otel_rows(path, columns, counts)
        case "litellm":
            return name, lambda: litellm_rows(path, columns, counts)
        case _:
            return name, lambda: csv_rows(path, {**PLAIN_COLUMNS, **columns}, counts)


# Gateways


def _record_gateways(args: argparse.Namespace) -> "RecordingSummary":
    import asyncio

    from headgate.cli.input.admin_request import admin_target
    from headgate.planning.recording.trace_writer import trace_file

    targets = [admin_target(url, args.config, permissions=_PERMISSIONS) for url in args.url or [None]]
    with trace_file(args.file) as file:
        return asyncio.run(_record_live(args, targets, file))


async def _record_live(args: argparse.Namespace, targets: "list[AdminTarget]", file: IO[bytes]) -> "RecordingSummary":
    import asyncio
    import time

    from headgate.cli.input.live_traffic import LiveTraffic, start_recordings
    from headgate.cli.output.recording_summary import RecordingSummary

    duration_s = args.duration or _LIVE_S
    traffic = LiveTraffic(
        await start_recordings(targets, duration_s=duration_s, recent=args.recent),
        duration_s=0 if args.recent else duration_s,
        wait_s=args.wait,
    )
    writer = _writer(args, file, "gateway", time.time() - traffic.age_s)
    is_full = False

    def on_row(row: "TrafficRow") -> None:
        nonlocal is_full
        if writer.is_full:
            is_full = True
            traffic.stop()
        else:
            writer.add(row)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, traffic.stop)
    progress = asyncio.create_task(_show_progress(traffic, writer)) if sys.stderr.isatty() else None
    try:
        result = await traffic.read(on_row)
    finally:
        if progress is not None:
            progress.cancel()
    warnings = [f"{each}; its later requests are missing" for each in result.problems]
    if is_full:
        warnings.append(_limit_warning(args))
    if result.dropped:
        warnings.append(f"{result.dropped} requests were dropped because they were not read in time")
    if result.unfinished:
        hint = "do not stop the recording" if traffic.stopped else "raise --wait"
        warnings.append(f"{result.unfinished} requests had not ended; {hint} to include them")
    if not writer.requests:
        warnings.append("no request arrived; check that traffic goes to this gateway")
    totals = writer.finish(
        dropped=result.dropped, unfinished=result.unfinished, complete=not result.problems and not is_full
    )
    return RecordingSummary(args.file, "gateway", writer, totals, 0, warnings)


async def _show_progress(traffic: "LiveTraffic", writer: "TraceWriter") -> None:
    import asyncio

    try:
        while True:
            sys.stderr.write(f"\r{traffic.age_s:.0f} s, {writer.requests:,} requests; Ctrl-C ends the recording")
            sys.stderr.flush()
            await asyncio.sleep(_PROGRESS_S)
    finally:
        sys.stderr.write("\r\x1b[K")


def _limit_warning(args: argparse.Namespace) -> str:
    return f"the trace reached its limit of {args.limit} requests; raise --limit to record more"
