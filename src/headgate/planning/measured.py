"""Measured costs and limits of Headgate's own processes, with the commands that measure them.

Plans for large volumes extrapolate from these figures. docs/operations/sizing.md and docs/project/cell-verification.md
describe the runs; a test compares the figures with these pages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Measured:
    value: float
    unit: str
    what: str
    command: str


REQUEST_US: Final = Measured(737, "µs", "gateway CPU per request", "just bench-relay")
CHUNK_US: Final = Measured(49.9, "µs", "gateway CPU per streamed chunk", "just bench-relay")
LEDGER_FACTOR: Final = Measured(1.14, "x", "gateway CPU with the ledger, for streams", "just bench-ledger --quick")
LEDGER_ROW_BYTES: Final = Measured(443, "bytes", "size of a ledger row with its index", "just bench-ledger --quick")
LEDGER_ROWS_PER_S: Final = Measured(11_600, "rows/s", "ledger rows written by one process", "just bench-ledger --quick")
ATTEMPTS_PER_REQUEST: Final = Measured(
    1.2, "rows", "ledger rows per request, at most", "pytest -s tests/lessons/test_11_dead_targets.py"
)
RECORD_BYTES: Final = Measured(193, "bytes", "record on disk per request", "just bench-records")
CELL_REQUESTS_PER_S: Final = Measured(
    500, "requests/s", "new streams per second of one cell, with all targets met", "just cell-streams --curve"
)
WATCH_CORES: Final = Measured(0.23, "cores", "watching 1,000 engines", "just cell-streams --parts watch")
PROCESS_SERIES: Final = Measured(3_514, "series", "metric series of one process", "python -m bench.metric_series")
ENDPOINT_SERIES: Final = Measured(
    14, "series", "metric series of the scheduler per endpoint", "python -m bench.metric_series"
)
SCHEDULER_CORES: Final = ((500, 0.44), (1_509, 0.63), (1_999, 0.68))
"""New streams per second, and the scheduler's share of a core (`just cell-streams --curve`)."""
SCHEDULER_COMMAND: Final = "just cell-streams --curve"

FIGURES: Final = (
    REQUEST_US,
    CHUNK_US,
    LEDGER_FACTOR,
    LEDGER_ROW_BYTES,
    LEDGER_ROWS_PER_S,
    ATTEMPTS_PER_REQUEST,
    RECORD_BYTES,
    CELL_REQUESTS_PER_S,
    WATCH_CORES,
    PROCESS_SERIES,
    ENDPOINT_SERIES,
)


def power_law(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns (a, b) of y = a·x^b, fitted by least squares to the logarithms."""
    pairs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    exponent = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else 0.0
    return math.exp(mean_y - exponent * mean_x), exponent


def scheduler_cores(requests_per_s: float) -> float:
    """Returns the share of a core that a cell's scheduler uses for this many new streams per second."""
    factor, exponent = power_law(SCHEDULER_CORES)
    return factor * requests_per_s**exponent
