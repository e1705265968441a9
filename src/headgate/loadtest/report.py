"""Results of a run as JSON.

Request rates are relative to the time during which requests were scheduled. A server that keeps up therefore completes
requests at the offered rate, no matter how long the last responses take. Token rates are relative to the time until the
last request ended.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from headgate.loadtest.cost import LoadTestCost, Price, cost_of
from headgate.loadtest.generator import RunCounts
from headgate.loadtest.request import LoadTestOutcome
from headgate.loadtest.senders import Sender
from headgate.loadtest.tally import LoadTestTally, LoadTestTargets, merge
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.targets import LatencyTargets


@dataclass(frozen=True, slots=True)
class LoadTestResult:
    """Results of a run, from which all reports are created."""

    url: str
    model: str
    seed: int
    run_id: str
    schedule_ns: int
    """Time during which requests were scheduled. If the run was stopped early, it ends with the run."""
    targets: LoadTestTargets
    counts: RunCounts
    senders: Sequence[Sender]
    tallies: Sequence[LoadTestTally]
    """The senders' tallies, in the same order."""
    price: Price | None = None

    @property
    def total(self) -> LoadTestTally:
        return merge(self.tallies)

    @property
    def cost(self) -> LoadTestCost | None:
        return None if self.price is None else cost_of(self.price, self.total, self.counts.elapsed_ns)

    @property
    def classes(self) -> dict[str, LoadTestTally]:
        return self._grouped(lambda sender: sender.class_label)

    @property
    def tenants(self) -> dict[str, LoadTestTally]:
        return self._grouped(lambda sender: sender.tenant_label)

    def _grouped(self, label: Callable[[Sender], str]) -> dict[str, LoadTestTally]:
        groups: dict[str, list[LoadTestTally]] = {}
        for sender, tally in zip(self.senders, self.tallies, strict=True):
            if tally.offered:
                groups.setdefault(label(sender), []).append(tally)
        return {name: merge(tallies) for name, tallies in sorted(groups.items())}

    @property
    def class_targets(self) -> dict[str, LatencyTargets]:
        """Targets of the classes that have their own."""
        return {sender.class_label: sender.caller for sender in self.senders if sender.caller is not None}

    def per_second(self, count: int) -> float:
        return count / (self.schedule_ns / 1e9) if self.schedule_ns > 0 else 0.0

    def tokens_per_second(self, tokens: int) -> float:
        return tokens / (self.counts.elapsed_ns / 1e9) if self.counts.elapsed_ns > 0 else 0.0


def report_json(result: LoadTestResult) -> dict[str, object]:
    return {
        "url": result.url,
        "model": result.model,
        "seed": result.seed,
        "run_id": result.run_id,
        "schedule_s": _round(result.schedule_ns / 1e9),
        "elapsed_s": _round(result.counts.elapsed_ns / 1e9),
        "stopped_early": result.counts.stopped_early,
        "slo": _targets(result.targets),
        "slo_by_class": {name: _targets(targets) for name, targets in sorted(result.class_targets.items())},
        "total": _group(result.total, result),
        "classes": {name: _group(tally, result) for name, tally in result.classes.items()},
        "tenants": {name: _group(tally, result) for name, tally in result.tenants.items()},
        "cost": None if result.cost is None else asdict(result.cost),
        "generator": _generator(result.counts),
    }


def _targets(targets: LatencyTargets) -> dict[str, float | None]:
    return {
        "ttft_s": _seconds(targets.ttft_ns),
        "tpot_s": _seconds(targets.tpot_ns),
        "e2e_s": _seconds(targets.e2e_ns),
    }


def _group(tally: LoadTestTally, result: LoadTestResult) -> dict[str, object]:
    counts: dict[str, object] = {str(ending): tally.outcomes[ending] for ending in LoadTestOutcome}
    return {
        "offered": tally.offered,
        "offered_per_s": _round(result.per_second(tally.offered)),
        **counts,
        "completed_per_s": _round(result.per_second(tally.outcomes[LoadTestOutcome.COMPLETED])),
        "good": tally.good,
        "goodput_per_s": _round(result.per_second(tally.good)),
        "ttft_s": _spread(LatencySummary.of(tally.ttft_ns)),
        "tpot_s": _spread(LatencySummary.of(tally.tpot_ns)),
        "e2e_s": _spread(LatencySummary.of(tally.e2e_ns)),
        "prompt_tokens": tally.prompt_tokens,
        "output_tokens": tally.output_tokens,
        "output_tokens_per_s": _round(result.tokens_per_second(tally.output_tokens)),
        "responses_without_usage": tally.without_usage,
        "http_error_by_code": _codes(tally, LoadTestOutcome.HTTP_ERROR),
        "interrupted_by_code": _codes(tally, LoadTestOutcome.INTERRUPTED),
        "connection_failed_by_code": _codes(tally, LoadTestOutcome.CONNECTION_FAILED),
        "retries": tally.retries,
        "retries_by_code": dict(sorted(tally.retried_for.items())),
    }


def _generator(course: RunCounts) -> dict[str, object]:
    return {
        "behind": course.is_behind,
        "lateness_s": _spread(course.lateness),
        "cpu_share": _round(course.cpu_s / (course.elapsed_ns / 1e9)) if course.elapsed_ns else 0.0,
        "connections_open_peak": course.connections.open_peak if course.connections else 0,
        "connection_waits": course.connection_waits,
    }


def _codes(tally: LoadTestTally, ending: LoadTestOutcome) -> dict[str, int]:
    return dict(sorted(tally.codes.get(ending, Counter[str]()).items()))


def _spread(spread: LatencySummary | None) -> dict[str, float] | None:
    if spread is None:
        return None
    return {f"p{percent}": _round(value / 1e9) for percent, value in spread.percentiles.items()} | {
        "max": _round(spread.max_ns / 1e9)
    }


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else _round(duration_ns / 1e9)


def _round(value: float) -> float:
    return round(value, 6)
