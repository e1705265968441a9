"""Other autoscalers: the Kubernetes horizontal pod autoscaler on three metrics, and KEDA.

They run behind the same gateway as Headgate's autoscaler and get better metrics than in production: the actual share of
engine capacity in use (a real engine reports itself busy with a single sequence), request counts with no reporting
delay, and the queue length of the whole pool. Sync periods, tolerance and stabilisation are the defaults.
"""

from collections import deque
from math import ceil
from typing import Final

from bench.scaling.demand import STEP_S
from bench.scaling.fluid import FleetView

SYNC_S: Final = 15
POLLING_S: Final = 30
TOLERANCE: Final = 0.1
STABILISATION_S: Final = 300
UP_AT_ONCE: Final = 4
"""Number of replicas that one sync may add if doubling the fleet would add fewer."""
RATE_STEPS: Final = 3
"""Number of steps over which the request rate is averaged."""


class HorizontalScaler:
    """Scale-up limit and scale-down stabilisation shared by all horizontal autoscalers."""

    def __init__(self, *, endpoints_min: int = 1) -> None:
        self._endpoints_min = endpoints_min
        self._recommended: deque[tuple[int, int]] = deque()
        """Time and size of each recommendation from the last five minutes, largest first. A later recommendation that
        is at least as large replaces an earlier one.
        """

    def stabilised(self, recommended: int, view: FleetView) -> int:
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

    def on_endpoint_ready(self, took_s: int) -> None:
        """Does nothing, because horizontal autoscalers do not use cold start durations."""


class Utilisation(HorizontalScaler):
    """HPA on a resource metric. Starting endpoints count as idle for scale-up and are ignored otherwise."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target
        self._busy: list[float] = []

    def desired(self, view: FleetView) -> int:
        self._busy.append(view.busy)
        if not _due(view.now_s, SYNC_S):
            return view.ready + view.warming
        busy, self._busy = sum(self._busy) / len(self._busy), []
        return self.stabilised(self._recommend(busy, view), view)

    def _recommend(self, busy: float, view: FleetView) -> int:
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


class RequestRate(HorizontalScaler):
    """HPA on requests per second per endpoint."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target
        self._rates: deque[float] = deque(maxlen=RATE_STEPS)

    def desired(self, view: FleetView) -> int:
        self._rates.append(view.rate)
        if not _due(view.now_s, SYNC_S):
            return view.ready + view.warming
        return self.stabilised(_per_endpoint(sum(self._rates) / len(self._rates), self._target, view), view)


class QueueDepth(HorizontalScaler):
    """KEDA on waiting requests per endpoint, or on waiting and running requests if `with_running` is set."""

    def __init__(self, target: float, *, with_running: bool = False) -> None:
        super().__init__()
        self._target = target
        self._with_running = with_running
        self._polled = 0.0

    def desired(self, view: FleetView) -> int:
        if _due(view.now_s, POLLING_S):
            self._polled = view.waiting + (view.running if self._with_running else 0.0)
        if not _due(view.now_s, SYNC_S):
            return view.ready + view.warming
        return self.stabilised(_per_endpoint(self._polled, self._target, view), view)


def _per_endpoint(total: float, target: float, view: FleetView) -> int:
    there = view.ready + view.warming
    if there and abs(total / (target * there) - 1) <= TOLERANCE:
        return there
    return ceil(total / target)


def _due(now_s: int, every_s: int) -> bool:
    """Whether a multiple of the period lies within the last step."""
    return now_s // every_s > (now_s - STEP_S) // every_s
