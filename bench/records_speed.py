"""Measure how fast request records are written and found, and their size.

    just bench-records [--quick] [--rows N]

One hour of requests is written to a new directory, as a gateway would write them but without pauses. Then requests are
looked up by ID, including an unknown one, and the full hour is searched: for a tenant's newest request, and for an
outcome that does not occur, which reads every row.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cli import print_progress
from headgate.core.commands import Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, FirstToken
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api, Ticket
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
)
from headgate.ports.records import AttemptRecord, RequestRecord
from headgate.telemetry.decision_history import RequestHistory
from headgate.telemetry.records.row import RecordRow, row_of
from headgate.telemetry.records.search import RecordFilter, find_by_id, search
from headgate.telemetry.records.segment_writer import SegmentWriter, segments

ROWS, QUICK_ROWS = 1_000_000, 50_000
HOUR = Duration(3_600 * SECOND)
BEGAN = Instant(1_767_225_600 * SECOND)
BLOCK = 500
TIMES = 3
TENANTS, ENDPOINTS = 50, 20
CLASSES = ("interactive", "long", "batch")


@dataclass(frozen=True, slots=True)
class Figures:
    rows: int
    bytes_per_row: float
    write_us_per_row: float
    find_s_max: float
    search_newest_s: float
    search_all_s: float
    """Elapsed time, best of several runs."""
    search_all_cpu_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="just bench-records", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, help=f"number of requests (default {ROWS:,})")
    parser.add_argument("--quick", action="store_true", help=f"write only {QUICK_ROWS:,} requests")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.rows or (QUICK_ROWS if args.quick else ROWS), Path(folder))
    for name, value in asdict(figures).items():
        print(f"{name:<18} {value:>14,.3f}")
    print(json.dumps(asdict(figures)))
    return 0


def measure(rows: int, folder: Path) -> Figures:
    asked, took_s = _written(rows, folder)
    size = sum(path.stat().st_size for path in segments(folder))
    found_s = [_timed(lambda name=name: find_by_id(folder, name, seconds_max=60)) for name in (*asked, "req_of_nobody")]
    newest = RecordFilter(BEGAN, BEGAN + HOUR, tenant="tenant-3")
    nothing = RecordFilter(BEGAN, BEGAN + HOUR, outcome=Outcome.EVICTED.value)
    return Figures(
        rows=rows,
        bytes_per_row=size / rows,
        write_us_per_row=took_s / rows * 1e6,
        find_s_max=max(found_s),
        search_newest_s=_timed(lambda: search(folder, newest, seconds_max=60)),
        search_all_s=_timed(lambda: search(folder, nothing, seconds_max=60)),
        search_all_cpu_s=_timed(lambda: search(folder, nothing, seconds_max=60), time.process_time),
    )


def _written(rows: int, folder: Path) -> tuple[list[str], float]:
    """Return some of the IDs, and the CPU time spent on writing."""
    writer = SegmentWriter(folder, "bench", retention_ns=Duration(24 * HOUR), bytes_max=1 << 40)
    asked: list[str] = []
    took_s = 0.0
    waiting: list[RecordRow] = []
    for number, row in enumerate(make_rows(rows)):
        waiting.append(row)
        if len(waiting) == BLOCK or number == rows - 1:
            began = time.process_time()
            writer.add(waiting, Instant(row.key.arrived_at))
            took_s += time.process_time() - began
            waiting = []
        if number % max(1, rows // 10) == 0:
            asked.append(row.key.request_id)
            print_progress(f"{number:,} of {rows:,} rows")
    writer.close()
    return asked, took_s


def make_rows(rows: int) -> Iterator[RecordRow]:
    """Yield rows from a fixed random seed."""
    lots = random.Random(20260324)
    for number in range(rows):
        yield _row(lots, Instant(BEGAN + number * HOUR // rows))


def _row(lots: random.Random, arrived: Instant) -> RecordRow:
    name, class_name = RequestId(f"req_{lots.getrandbits(96):024x}"), ClassName(lots.choice(CLASSES))
    tenant, endpoint = TenantId(f"tenant-{lots.randrange(TENANTS)}"), EndpointId(f"main/{lots.randrange(ENDPOINTS)}")
    moments = [0]
    for _ in range(9):
        moments.append(moments[-1] + lots.randrange(50_000, 200 * MILLISECOND))
    record = RequestRecord(name, arrived, 1)
    record.tenant, record.class_name, record.outcome = tenant, class_name, Outcome.COMPLETED
    record.api, record.model, record.stream, record.status = Api.CHAT, "llama-3", True, 200
    record.head_received_at, record.authenticated_at, record.body_received_at, record.queued_at = moments[1:5]
    waited_ns = Duration(moments[5] - moments[4])
    attempt = AttemptRecord(1, endpoint, PoolName("main"), reason="", hedge=False, waited_ns=waited_ns, now=moments[5])
    attempt.sent_at, attempt.first_byte_at, attempt.last_byte_at = moments[6:9]
    attempt.ended_at, attempt.ending = moments[8], AttemptEnding.COMPLETED
    record.attempts, record.waited_ns = [attempt], waited_ns
    record.replied_at, record.ended_at = moments[8], moments[9]
    return row_of(record, _history(record, attempt, arrived, waited_ns))


def _history(record: RequestRecord, attempt: AttemptRecord, arrived: Instant, waited_ns: Duration) -> RequestHistory:
    name, tenant, class_name = record.request_id, record.tenant, record.class_name
    assert tenant is not None
    assert class_name is not None
    history = RequestHistory(
        Ticket(name, Api.CHAT, ModelName("llama-3"), tenant, stream=True, prompt_bytes=1_234), arrived
    )
    long, place = Duration(60 * SECOND), (attempt.endpoint_id, attempt.pool, class_name)
    why = "least loaded, 3 of 8 requests in flight"
    history.steps += [
        (Instant(arrived + attempt.dispatched_at), Dispatch(name, 1, *place, waited_ns, long, long, long, Caps(), why)),
        (Instant(arrived + attempt.first_byte_at), FirstToken(name, 1)),
        (Instant(arrived + attempt.ended_at), AttemptEnded(name, 1, AttemptEnding.COMPLETED)),
        (Instant(arrived + attempt.ended_at), End(name, Outcome.COMPLETED, class_name, 1, waited_ns, None, "")),
    ]
    return history


def _timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the best of several runs, to exclude other load on the machine."""
    took: list[float] = []
    for _ in range(TIMES):
        began = clock()
        work()
        took.append(clock() - began)
    return min(took)


if __name__ == "__main__":
    sys.exit(main())
