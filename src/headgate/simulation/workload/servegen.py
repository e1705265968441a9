"""Arrivals from ServeGen's measured clients.

ServeGen (Alibaba) published data about each client: the request rate and gap distribution for every ten minutes, and
length quantiles for every six hours. Arrivals are derived per client and ten-minute window:

- **Count**: rate · 600 s · keep. Fractions are carried to the next window, starting with a random fraction. Each
  client's total is exact to one request, however small `keep` is.
- **Times**: the gaps are drawn from the client's distribution, placed around a circle of ten minutes and rotated by a
  random angle. With exponential gaps this is exactly a Poisson process with a known count, without a seam between
  windows. Only the kind and shape of the distribution matter. As in ServeGen's own generator, gaps are scaled to fill
  the window. For Gamma, fitted by moments, shape · scale · rate is close to 1 if the client was active during the
  complete window. If it is lower, the requests came in only a part of the window but are spread over all of it here (3
  % of m-large's requests). For Weibull, fitted by likelihood, shape and scale miss the measured mean, mostly upwards.
- **Lengths**: drawn from the quantiles of the client's own six hours, or of its nearest six hours if these are missing.
  Prompt and output are drawn independently, because their correlation is about zero. Lengths of some of the largest
  clients were not published (m-large: 37 % of requests). These clients use the lengths of all clients over the complete
  file, weighted by requests.

Every draw is seeded by client and window. Any part of the fourteen days is therefore an exact subset, and only one
window is in memory at a time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Final

from headgate.model.units import SECOND, ClassName, Duration, Instant, TenantId
from headgate.simulation.options import ServeGenTraffic
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.servegen_files import WINDOW_S, ClientLengths, ClientWindow, read_lengths, read_rates
from headgate.simulation.workload.shares import WeightedDraw

SHAPE_MIN: Final = 0.006
"""Minimum shape. Draws with a lower shape would underflow. The published shapes start at 0.0067."""

_WINDOW_NS: Final = WINDOW_S * SECOND
_CLIENT_BITS: Final = 20
_CLIENT_MASK: Final = (1 << _CLIENT_BITS) - 1


WindowCounts = Mapping[int, Sequence[tuple[ClientWindow, int]]]
"""Clients that have requests and their request counts, by window start in seconds, in chronological order."""


def servegen_arrivals(traffic: ServeGenTraffic, *, seed: int, source: str) -> Arrivals:
    processes = read_rates(traffic.rates)
    lengths = ClientLengths(read_lengths(traffic.lengths), processes)
    start_ns, end_ns = _time_range(traffic, processes)
    due = _window_counts(processes, keep=traffic.keep, seed=f"{seed} phase {source}")
    wanted = {
        window_s: due[window_s]
        for window_s in due
        if start_ns < (window_s + WINDOW_S) * SECOND and window_s * SECOND < end_ns
    }
    return _arrivals(traffic, wanted, lengths, seed=seed, source=source, end_ns=end_ns)


def servegen_span_ns(traffic: ServeGenTraffic) -> Duration:
    start_ns, end_ns = _time_range(traffic, read_rates(traffic.rates))
    return Duration(int((end_ns - start_ns) / traffic.speed_up))


def _time_range(traffic: ServeGenTraffic, processes: Sequence[ClientWindow]) -> tuple[int, int]:
    """Returns the selected range of the file's time, in nanoseconds."""
    end_ns = (processes[-1].window_s + WINDOW_S) * SECOND
    if traffic.start_ns >= end_ns:
        raise WorkloadError(f"{traffic.rates} ends at {end_ns // SECOND} s; the start must be earlier")
    if traffic.duration_ns is not None:
        end_ns = min(end_ns, traffic.start_ns + traffic.duration_ns)
    return traffic.start_ns, end_ns


def _window_counts(processes: Sequence[ClientWindow], *, keep: float, seed: str) -> WindowCounts:
    """Returns the number of requests per client and window, carrying fractions forward."""
    carried: dict[str, float] = {}
    due = defaultdict[int, list[tuple[ClientWindow, int]]](list)
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
    traffic: ServeGenTraffic, due: WindowCounts, lengths: ClientLengths, *, seed: int, source: str, end_ns: int
) -> Iterator[Arrival]:
    start_ns, speed_up = traffic.start_ns, traffic.speed_up
    for window_s, clients in due.items():
        classes = WeightedDraw(traffic.classes, Random(f"{seed} class {source} {window_s}"))
        senders = [
            (
                TenantId(process.client),
                lengths.at(process.client, window_s),
                Random(_seed_key(seed, "size", source, process)),
            )
            for process, _ in clients
        ]
        for offset_ns, number in _arrival_offsets(clients, seed=seed, source=source):
            at_ns = window_s * SECOND + offset_ns
            tenant, texts, size = senders[number]
            prompt_tokens, output_tokens = texts.prompt.value_at(size.random()), texts.output.value_at(size.random())
            service_class = ClassName(classes.next())
            if start_ns <= at_ns < end_ns:
                at = Instant(int((at_ns - start_ns) / speed_up))
                yield Arrival(at, prompt_tokens, output_tokens, service_class, tenant)


def _arrival_offsets(
    clients: Sequence[tuple[ClientWindow, int]], *, seed: int, source: str
) -> Iterator[tuple[int, int]]:
    """Yields the offset from the window's start and the client's index, in chronological order."""
    assert len(clients) <= _CLIENT_MASK
    # Packing both into one integer keeps sorting a window of a million requests fast and small.
    marks = [
        (offset_ns << _CLIENT_BITS) | number
        for number, (process, count) in enumerate(clients)
        for offset_ns in _client_offsets(process, count, Random(_seed_key(seed, "when", source, process)))
    ]
    marks.sort()
    return ((mark >> _CLIENT_BITS, mark & _CLIENT_MASK) for mark in marks)


def _client_offsets(process: ClientWindow, count: int, when: Random) -> Iterator[int]:
    """Returns the offsets of one client's requests: its gaps around a circle, rotated by a random angle."""
    shape = max(process.shape, SHAPE_MIN)
    draw = when.weibullvariate if process.is_weibull else when.gammavariate
    # The library takes the shape as the last argument for Weibull, but as the first for Gamma.
    first, second = (1.0, shape) if process.is_weibull else (shape, 1.0)
    gaps = [draw(first, second) for _ in range(count)]
    turn = when.random()
    # With the smallest shapes, all gaps may be zero. Such requests arrive together.
    around = sum(gaps) or 1.0
    return (int((turn + reached / around) % 1.0 * _WINDOW_NS) for reached in accumulate(gaps))


def _seed_key(seed: int, purpose: str, source: str, process: ClientWindow) -> str:
    return f"{seed} {purpose} {source} {process.client} {process.window_s}"
