"""Writes an anonymous trace (`simulation/workload/recorded_trace.py`).

The file grows as requests are added, and their number is limited.
"""

import gzip
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from headgate.model.outcome import Outcome
from headgate.model.units import BYTES_PER_TOKEN
from headgate.planning.recording.prefix_ids import PrefixIds
from headgate.planning.recording.pseudonyms import NAME_CHARS_MAX, StageNumbers, TenantPseudonyms
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.recorded_trace import TraceEnd, TraceHeader, TraceLine, TraceTotals
from headgate.wire.escape import printable

REQUESTS_MAX: Final = 1_000_000
"""Default maximum number of requests in a trace."""
COUNTED_MAX: Final = 10_000
"""Maximum number of different names in each count of the summary."""
OTHER: Final = "other"
_COMPRESSION_LEVEL: Final = 6
_US_MAX: Final = 2**53
_OUTCOMES: Final = frozenset(each.value for each in Outcome)


class TraceWriter:
    """Writes to an open file. `finish` must be called at the end."""

    def __init__(
        self,
        file: IO[bytes],
        header: TraceHeader,
        tenants: TenantPseudonyms,
        *,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self._file = file
        self._tenants = tenants
        self._requests_max = requests_max
        self._stages = StageNumbers()
        self._prefixes = PrefixIds()
        self._encoder = msgspec.json.Encoder()
        self.requests = 0
        self._prompt_tokens = self._cached_tokens = self._output_tokens = self._last_at_us = 0
        self.classes = Counter[str]()
        self.tenants = Counter[str]()
        self.models = Counter[str]()
        self.outcomes = Counter[str]()
        self._write(header)

    @property
    def is_full(self) -> bool:
        """Whether the trace has its maximum number of requests."""
        return self.requests >= self._requests_max

    def add(self, row: TrafficRow) -> None:
        assert not self.is_full, "the trace is full"
        line = self._line(row)
        self._write(line)
        self.requests += 1
        self._prompt_tokens += line.prompt_tokens
        self._cached_tokens += line.cached_tokens
        self._output_tokens += line.output_tokens
        self._last_at_us = max(self._last_at_us, line.at_us)
        for counter, name in (
            (self.classes, line.service_class),
            (self.tenants, line.tenant),
            (self.models, line.model),
            (self.outcomes, line.outcome),
        ):
            counter[name if name in counter or len(counter) < COUNTED_MAX else OTHER] += 1

    def finish(self, *, dropped: int = 0, unfinished: int = 0, complete: bool = True) -> TraceTotals:
        """Writes the end line."""
        totals = TraceTotals(
            requests=self.requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            last_at_us=self._last_at_us,
            prefix_ids=self._prefixes.count,
            dropped=dropped,
            unfinished=unfinished,
            complete=complete,
        )
        self._write(TraceEnd(totals))
        return totals

    def _line(self, row: TrafficRow) -> TraceLine:
        return TraceLine(
            at_us=min(max(0, row.at_us), _US_MAX),
            # A request that was not computed has no token count.
            prompt_tokens=row.prompt_tokens or row.prompt_bytes // BYTES_PER_TOKEN,
            output_tokens=row.output_tokens,
            cached_tokens=row.cached_tokens,
            api=row.api,
            model=printable(row.model, NAME_CHARS_MAX),
            service_class=printable(row.service_class, NAME_CHARS_MAX),
            tenant=self._tenants.name(row.tenant),
            stream=row.stream,
            outcome=row.outcome if row.outcome in _OUTCOMES else Outcome.INTERNAL_ERROR.value,
            retries=row.retries,
            stages=tuple((self._stages.name(name), length_us) for name, length_us in row.stages),
            prefix=self._prefixes.ids(row),
        )

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")


@contextmanager
def trace_file(path: Path) -> Generator[IO[bytes]]:
    """Opens a new trace, which is compressed if its name ends in .gz.

    It replaces an existing file only if the recording succeeds. Raises `WorkloadError` if it cannot be written.
    """
    # A link stays, and the file to which it leads is replaced.
    target = path.resolve()
    if target.is_dir():
        raise WorkloadError(f"{path} is a directory; specify a file")
    if target.exists() and not target.is_file():
        raise WorkloadError(f"{path} is not a regular file; specify a file, which is replaced at the end")
    part = target.with_name(target.name + ".part")
    try:
        opened = part.open("wb")
    except OSError as error:
        raise WorkloadError(f"{path} cannot be written: {error.strerror}; use an existing directory") from None
    with opened as file:
        try:
            if path.suffix == ".gz":
                # Neither the name of the file nor the date is part of the trace.
                with gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, file, mtime=0) as compressed:
                    yield cast("IO[bytes]", compressed)
            else:
                yield file
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    part.replace(target)
