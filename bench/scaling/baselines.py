"""How do others scale? Kubernetes' horizontal autoscaler on three kinds of figures, and KEDA.

They stand behind the same gateway as ours, and are given more than they have in life: the share of what endpoints can
do that is really used (an engine that decodes a single sequence already calls itself busy), requests counted without
delay, and the queue of the whole pool. Their clocks, tolerance and stabilisation are the defaults.
"""

from collections import deque
from math import ceil
from typing import Final

from bench.scaling.demand import STEP_S
from bench.scaling.fluid import View

SYNC_S: Final = 15
POLLING_S: Final = 30
TOLERANCE: Final = 0.1
STABILISATION_S: Final = 300
UP_AT_ONCE: Final = 4
"""In one sync the fleet is doubled at most, or so many are added."""
RATE_STEPS: Final = 3
"""Over so many steps requests are counted."""


class Horizontal:
    """What every horizontal autoscaler does with what its metric recommends."""

    def __init__(self, *, endpoints_min: int = 1) -> None:
        self._endpoints_min = endpoints_min
        self._recommended: deque[tuple[int, int]] = deque()
        """Of the last five minutes, the greatest first: what a later one reaches is forgotten."""

    def settled(self, recommended: int, view: View) -> int:
        there = view.ready + view.warming
        recommended = max(self._endpoints_min, recommended)
        past = self._recommended
        while past and past[-1][1] <= recommended:
            past.pop()
        past.append((view.now_s, recommended))
        while past[0][0] < view.now_s - STABILISATION_S:
            past.popleft()
        if recommended > there:
            return min(recommended, max(2 * there, there + UP_AT_ONCE))
        return min(there, past[0][1])

    def started(self, took_s: int) -> None:
        """It does not care."""


class Utilisation(Horizontal):
    """HPA on a resource: endpoints that are starting count as idle when it would scale up, and not at all otherwise."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target
        self._busy: list[float] = []

    def wanted(self, view: View) -> int:
        self._busy.append(view.busy)
        if not _due(view.now_s, SYNC_S):
            return view.ready + view.warming
        busy, self._busy = sum(self._busy) / len(self._busy), []
        return self.settled(self._recommend(busy, view), view)

    def _recommend(self, busy: float, view: View) -> int:
        there = view.ready + view.warming
        if not view.ready:
            return there
        ratio = busy / self._target
        if abs(ratio - 1) <= TOLERANCE:
            return there
        if ratio < 1 or not view.warming:
            return ceil(ratio * view.ready)
        damped = ratio * view.ready / there
        return there if damped <= 1 + TOLERANCE else ceil(damped * there)


class RequestRate(Horizontal):
    """HPA on requests a second and endpoint."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target
        self._rates: deque[float] = deque(maxlen=RATE_STEPS)

    def wanted(self, view: View) -> int:
        self._rates.append(view.rate)
        if not _due(view.now_s, SYNC_S):
            return view.ready + view.warming
        return self.settled(_per_endpoint(sum(self._rates) / len(self._rates), self._target, view), view)


class QueueDepth(Horizontal):
    """KEDA on requests that wait, per endpoint; with those that run, on requests that are open."""

    def __init__(self, target: float, *, with_running: bool = False) -> None:
        super().__init__()
        self._target = target
        self._with_running = with_running
        self._polled = 0.0

    def wanted(self, view: View) -> int:
        if _due(view.now_s, POLLING_S):
            self._polled = view.waiting + (view.running if self._with_running else 0.0)
        if not _due(view.now_s, SYNC_S):
            return view.ready + view.warming
        return self.settled(_per_endpoint(self._polled, self._target, view), view)


def _per_endpoint(total: float, target: float, view: View) -> int:
    there = view.ready + view.warming
    if there and abs(total / (target * there) - 1) <= TOLERANCE:
        return there
    return ceil(total / target)


def _due(now_s: int, every_s: int) -> bool:
    """Whether a multiple of it lies within the last step."""
    return now_s // every_s > (now_s - STEP_S) // every_s
