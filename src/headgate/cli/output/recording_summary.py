"""Summary of a recorded trace."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict

from headgate.planning.recording.trace_writer import TraceWriter
from headgate.simulation.workload.recorded_trace import TraceTotals

_NAMES_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    file: Path
    source: str
    writer: TraceWriter
    totals: TraceTotals
    skipped: int
    """Number of imported rows or spans that are not requests."""
    warnings: Sequence[str]
    """Reasons why requests are missing."""

    def json(self) -> dict[str, object]:
        writer = self.writer
        return {
            "file": str(self.file),
            "bytes": self._bytes,
            "source": self.source,
            **asdict(self.totals),
            "skipped": self.skipped,
            "classes": writer.classes,
            "models": writer.models,
            "outcomes": writer.outcomes,
            "tenants": len(writer.tenants),
            "warnings": self.warnings,
        }

    def lines(self) -> Iterator[str]:
        totals, writer = self.totals, self.writer
        length_s = totals.last_at_us / 1e6
        yield f"{self.file}: {totals.requests:,} requests in {length_s:,.1f} s, {self._bytes:,} bytes"
        prompt = f"{totals.prompt_tokens:,} prompt ({totals.cached_tokens:,} cached)"
        yield f"tokens    {prompt}, {totals.output_tokens:,} output"
        yield f"classes   {_counts(writer.classes)}"
        yield f"models    {_counts(writer.models)}"
        yield f"outcomes  {_counts(writer.outcomes)}"
        yield f"tenants   {len(writer.tenants):,}"
        yield f"prefixes  {totals.prefix_ids:,} different blocks"
        if self.skipped:
            yield f"skipped   {self.skipped:,}, which are not requests to a language model"

    @property
    def _bytes(self) -> int:
        return self.file.stat().st_size


def _counts(names: Counter[str]) -> str:
    shown = [f"{name or 'unknown'} {count:,}" for name, count in names.most_common(_NAMES_SHOWN_MAX)]
    more = len(names) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more > 0 else shown) or "none"
