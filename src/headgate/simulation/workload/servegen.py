"""Which requests come of ServeGen's clients, whose rates and lengths were measured day after day?

ServeGen (Alibaba) tells, for each client and each ten minutes, how many requests a second came, how the gaps between
them were distributed, and for each six hours quantiles of the lengths. From this, per client and ten minutes:

- **How many**: rate · 600 s · keep. Fractions are carried from one ten minutes to the next, beginning at a random
  fraction, so that each client's total is exact to one request however small `keep` is.
- **When**: as many gaps are drawn from the client's distribution, laid around a circle of ten minutes, and the circle
  turned by chance. With exponential gaps this is exactly a Poisson process of known count, and there is no seam where
  windows meet. Only the distribution's kind and shape matter. Its scale does not: gaps are scaled to fill the window,
  as ServeGen's own generator does. For Gamma, fitted by moments, shape · scale · rate is near 1 wherever the client was
  active all through; where it is less, the requests came in a part of the window only, and are spread here (3 % of
  m-large's requests). For Weibull, fitted by likelihood, shape and scale miss the measured mean, mostly upwards.
- **How long**: by the quantiles of the client's own six hours, prompt and answer apart (their correlation is about
  nil), of its nearest six hours where these are missing, and of all clients over the whole file, pooled by their
  requests, where it has none: lengths of some of the largest clients were not published (m-large: 37 % of requests).

Every draw is seeded by client and window, so that any stretch of the fourteen days is exactly a part of the whole, and
one ten minutes at a time is in memory.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

from headgate.model.units import SECOND, ClassName, Duration, Instant, TenantId
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.servegen_files import WINDOW_S, ClientLengths, Process, read_lengths, read_rates
from headgate.simulation.workload.shares import Draw, Shares

SHAPE_MIN: Final = 0.006
"""Below it a float cannot hold what is drawn. The published shapes begin at 0.0067."""

_WINDOW_NS: Final = WINDOW_S * SECOND
_CLIENT_BITS: Final = 20
_CLIENT_MASK: Final = (1 << _CLIENT_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeGenTraffic:
    """The clients are the tenants."""

    rates: Path
    lengths: Path
    classes: Shares
    start_ns: Duration = Duration(0)
    length_ns: Duration | None = None
    """None goes on to the end of the file."""
    keep: float = 1.0
    """By how much every client's rate is multiplied; its burstiness stays."""
    speed_up: float = 1.0


Due = Mapping[int, Sequence[tuple[Process, int]]]
"""By the window's start in seconds, in the order of time: each client with some requests in it, and how many."""


def servegen_arrivals(traffic: ServeGenTraffic, *, seed: int, source: str) -> Arrivals:
    processes = read_rates(traffic.rates)
    lengths = ClientLengths(read_lengths(traffic.lengths), processes)
    start_ns, end_ns = _stretch(traffic, processes)
    due = _due(processes, keep=traffic.keep, seed=f"{seed} phase {source}")
    wanted = {
        window_s: due[window_s]
        for window_s in due
        if start_ns < (window_s + WINDOW_S) * SECOND and window_s * SECOND < end_ns
    }
    return _arrivals(traffic, wanted, lengths, seed=seed, source=source, end_ns=end_ns)


def servegen_span_ns(traffic: ServeGenTraffic) -> Duration:
    start_ns, end_ns = _stretch(traffic, read_rates(traffic.rates))
    return Duration(int((end_ns - start_ns) / traffic.speed_up))


def _stretch(traffic: ServeGenTraffic, processes: Sequence[Process]) -> tuple[int, int]:
    """What is wanted of the file's time, in nanoseconds."""
    end_ns = (processes[-1].window_s + WINDOW_S) * SECOND
    if traffic.start_ns >= end_ns:
        raise Problem(f"{traffic.rates} ends after {end_ns // SECOND} s; start before that")
    if traffic.length_ns is not None:
        end_ns = min(end_ns, traffic.start_ns + traffic.length_ns)
    return traffic.start_ns, end_ns


def _due(processes: Sequence[Process], *, keep: float, seed: str) -> Due:
    """How many requests each client sends in each window, fractions carried on."""
    carried: dict[str, float] = {}
    due = defaultdict[int, list[tuple[Process, int]]](list)
    for process in processes:
        if process.client not in carried:
            carried[process.client] = Random(f"{seed} {process.client}").random()
        expected = carried[process.client] + process.rate * WINDOW_S * keep
        count = int(expected)
        carried[process.client] = expected - count
        if count > 0:
            due[process.window_s].append((process, count))
    return due


def _arrivals(
    traffic: ServeGenTraffic, due: Due, lengths: ClientLengths, *, seed: int, source: str, end_ns: int
) -> Iterator[Arrival]:
    start_ns, speed_up = traffic.start_ns, traffic.speed_up
    for window_s, clients in due.items():
        classes = Draw(traffic.classes, Random(f"{seed} class {source} {window_s}"))
        senders = [
            (
                TenantId(process.client),
                lengths.at(process.client, window_s),
                Random(_key(seed, "size", source, process)),
            )
            for process, _ in clients
        ]
        for offset_ns, number in _moments(clients, seed=seed, source=source):
            at_ns = window_s * SECOND + offset_ns
            tenant, texts, size = senders[number]
            prompt_tokens, output_tokens = texts.prompt.at(size.random()), texts.output.at(size.random())
            service_class = ClassName(classes.next())
            if start_ns <= at_ns < end_ns:
                at = Instant(int((at_ns - start_ns) / speed_up))
                yield Arrival(at, prompt_tokens, output_tokens, service_class, tenant)


def _moments(clients: Sequence[tuple[Process, int]], *, seed: int, source: str) -> Iterator[tuple[int, int]]:
    """Since the window's start, in order, each with the number of its client."""
    assert len(clients) <= _CLIENT_MASK
    # One number holds both, so that a window of a million requests is sorted quickly and in little memory.
    marks = [
        (offset_ns << _CLIENT_BITS) | number
        for number, (process, count) in enumerate(clients)
        for offset_ns in _offsets(process, count, Random(_key(seed, "when", source, process)))
    ]
    marks.sort()
    return ((mark >> _CLIENT_BITS, mark & _CLIENT_MASK) for mark in marks)


def _offsets(process: Process, count: int, when: Random) -> Iterator[int]:
    """One client's moments since the window's start: its gaps around a circle, turned by chance."""
    shape = max(process.shape, SHAPE_MIN)
    draw = when.weibullvariate if process.is_weibull else when.gammavariate
    # The library names a Weibull's shape last and a Gamma's first.
    first, second = (1.0, shape) if process.is_weibull else (shape, 1.0)
    gaps = [draw(first, second) for _ in range(count)]
    turn = when.random()
    # Gaps of the smallest shapes may all be nil: such requests come together.
    around = sum(gaps) or 1.0
    return (int((turn + reached / around) % 1.0 * _WINDOW_NS) for reached in accumulate(gaps))


def _key(seed: int, purpose: str, source: str, process: Process) -> str:
    return f"{seed} {purpose} {source} {process.client} {process.window_s}"
