"""Reads the traffic in record files. Records have no prefix hashes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.ports.traffic import TrafficRow
from headgate.telemetry.recording.traffic_recorder import NO_CALLERS, ServedModels
from headgate.telemetry.records.row import RecordRow
from headgate.telemetry.records.segment import Block, UnreadableSegment, blocks, rows_of
from headgate.telemetry.records.segment_writer import segments


@dataclass(slots=True)
class StoredTraffic:
    """The requests in a directory of record files."""

    folder: Path
    last_s: float | None = None
    """Length of the period before the newest request to which the traffic is limited. None if it is not limited."""
    unreadable: int = 0
    """Number of damaged files and blocks in the last pass."""

    def rows(self) -> Iterator[TrafficRow]:
        """Yields the requests that reached the scheduler. Their times are Unix times in microseconds."""
        since = 0 if self.last_s is None else self._newest() - round(self.last_s * 1e9)
        self.unreadable = 0
        models = ServedModels()
        for block in self._blocks():
            if block.last_arrival < since:
                continue
            try:
                rows = rows_of(block, range(block.rows))
            except UnreadableSegment:
                self.unreadable += 1
                continue
            for row in rows:
                if row.key.arrived_at >= since and row.key.tenant not in NO_CALLERS and row.api:
                    yield _traffic_row(row, models)

    def _newest(self) -> int:
        return max((block.last_arrival for block in self._blocks()), default=0)

    def _blocks(self) -> Iterator[Block]:
        for path in segments(self.folder):
            try:
                yield from (block for block, _ in blocks(path))
            except UnreadableSegment:
                self.unreadable += 1


def _traffic_row(row: RecordRow, models: ServedModels) -> TrafficRow:
    key = row.key
    return TrafficRow(
        at_us=key.arrived_at // 1_000,
        api=row.api,
        model=models.known_name(row.model, attempted=bool(row.attempts)),
        service_class=key.service_class,
        tenant=key.tenant,
        stream=row.stream,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        prompt_bytes=row.prompt_bytes,
        outcome=key.outcome,
        retries=row.client_retries,
        stages=tuple(row.caller_stages),
    )
