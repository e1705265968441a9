"""What came of a run, for machines?

Rates of requests are counted over the time in which requests were due to arrive, so a server that keeps up completes
as many a second as it was offered, however long the last answers take. Tokens a second are counted to the last ending.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.loadtest.endings import Ending
from headgate.loadtest.generator import Course
from headgate.loadtest.senders import Sender
from headgate.loadtest.tally import Tally, Targets, merge
from headgate.simulation.report.spread import Spread


@dataclass(frozen=True, slots=True)
class Result:
    """All that a report is made of."""

    url: str
    model: str
    seed: int
    run_id: str
    schedule_ns: int
    """How long requests were due to arrive, cut short where the run was."""
    targets: Targets
    course: Course
    senders: Sequence[Sender]
    tallies: Sequence[Tally]
    """One for each sender."""

    @property
    def total(self) -> Tally:
        return merge(self.tallies)

    @property
    def classes(self) -> dict[str, Tally]:
        return self._grouped(lambda sender: sender.class_label)

    @property
    def tenants(self) -> dict[str, Tally]:
        return self._grouped(lambda sender: sender.tenant_label)

    def _grouped(self, label: Callable[[Sender], str]) -> dict[str, Tally]:
        groups: dict[str, list[Tally]] = {}
        for sender, tally in zip(self.senders, self.tallies, strict=True):
            if tally.offered:
                groups.setdefault(label(sender), []).append(tally)
        return {name: merge(tallies) for name, tallies in sorted(groups.items())}

    def per_second(self, count: int) -> float:
        return count / (self.schedule_ns / 1e9) if self.schedule_ns > 0 else 0.0

    def tokens_per_second(self, tokens: int) -> float:
        return tokens / (self.course.elapsed_ns / 1e9) if self.course.elapsed_ns > 0 else 0.0


def as_data(result: Result) -> dict[str, object]:
    return {
        "url": result.url,
        "model": result.model,
        "seed": result.seed,
        "run_id": result.run_id,
        "schedule_s": _round(result.schedule_ns / 1e9),
        "elapsed_s": _round(result.course.elapsed_ns / 1e9),
        "stopped_early": result.course.stopped_early,
        "slo": {
            "ttft_s": _seconds(result.targets.ttft_ns),
            "tpot_s": _seconds(result.targets.tpot_ns),
            "e2e_s": _seconds(result.targets.e2e_ns),
        },
        "total": _group(result.total, result),
        "classes": {name: _group(tally, result) for name, tally in result.classes.items()},
        "tenants": {name: _group(tally, result) for name, tally in result.tenants.items()},
        "generator": _generator(result.course),
    }


def _group(tally: Tally, result: Result) -> dict[str, object]:
    counts: dict[str, object] = {str(ending): tally.endings[ending] for ending in Ending}
    return {
        "offered": tally.offered,
        "offered_per_s": _round(result.per_second(tally.offered)),
        **counts,
        "completed_per_s": _round(result.per_second(tally.endings[Ending.COMPLETED])),
        "good": tally.good,
        "goodput_per_s": _round(result.per_second(tally.good)),
        "ttft_s": _spread(Spread.of(tally.ttft_ns)),
        "tpot_s": _spread(Spread.of(tally.tpot_ns)),
        "e2e_s": _spread(Spread.of(tally.e2e_ns)),
        "prompt_tokens": tally.prompt_tokens,
        "output_tokens": tally.output_tokens,
        "output_tokens_per_s": _round(result.tokens_per_second(tally.output_tokens)),
        "answers_without_usage": tally.tokens_untold,
        "refused_by_code": _codes(tally, Ending.REFUSED),
        "broken_by_code": _codes(tally, Ending.BROKEN),
        "unreached_by_code": _codes(tally, Ending.UNREACHED),
        "retries": tally.retries,
        "retries_by_code": dict(sorted(tally.retried_for.items())),
    }


def _generator(course: Course) -> dict[str, object]:
    return {
        "behind": course.is_behind,
        "lateness_s": _spread(course.lateness),
        "cpu_share": _round(course.cpu_s / (course.elapsed_ns / 1e9)) if course.elapsed_ns else 0.0,
        "connections_open_most": course.connections.open_most if course.connections else 0,
        "connection_waits": course.connection_waits,
    }


def _codes(tally: Tally, ending: Ending) -> dict[str, int]:
    return dict(sorted(tally.codes.get(ending, Counter[str]()).items()))


def _spread(spread: Spread | None) -> dict[str, float] | None:
    if spread is None:
        return None
    return {f"p{percent}": _round(value / 1e9) for percent, value in spread.at.items()} | {
        "max": _round(spread.most / 1e9)
    }


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else _round(duration_ns / 1e9)


def _round(value: float) -> float:
    return round(value, 6)
