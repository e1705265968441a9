"""Reads the traffic of running gateways through their admin APIs, and merges it.

Each gateway counts time from the start of its own recording. The starts are compared on this machine's clock, so the
gateways' clocks do not matter.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from headgate.cli.input.admin_request import AdminRequestFailed, AdminTarget, post_to_admin
from headgate.ports.traffic import TrafficPage, TrafficRow

READ_INTERVAL_S: Final = 1.0
ATTEMPTS_MAX: Final = 5
"""Number of consecutive failures after which a gateway is given up."""
_US: Final = 1_000_000

OnRow = Callable[[TrafficRow], None]


@dataclass(frozen=True, slots=True)
class LiveResult:
    dropped: int
    unfinished: int
    problems: tuple[str, ...]
    """Gateways that stopped responding, and why."""


@dataclass(slots=True)
class GatewayRecording:
    """The recording of one gateway."""

    target: AdminTarget
    page: TrafficPage
    """The part that was read last."""
    started_us: float
    """Start on this machine's monotonic clock."""
    problem: str = ""

    async def read(self, *, end: bool, interval_s: float) -> None:
        """Reads the next part. Raises `AdminRequestFailed` if the gateway does not respond after several attempts."""
        after = self.page.first + len(self.page.rows)
        body = {"recording": self.page.recording, "after": after, "end": end}
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self.page = _page(await post_to_admin(self.target, "traffic/read", body))
            except AdminRequestFailed:
                if attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(interval_s)
            else:
                return


async def start_recordings(
    targets: Sequence[AdminTarget], *, duration_s: int, recent: bool
) -> tuple[GatewayRecording, ...]:
    """Starts a recording on each gateway. Raises `AdminRequestFailed`."""
    body = {"recent": True} if recent else {"duration_s": duration_s}

    async def start(target: AdminTarget) -> GatewayRecording:
        page = _page(await post_to_admin(target, "traffic/start", body))
        return GatewayRecording(target, page, time.monotonic() * _US - page.age_us)

    return tuple(await asyncio.gather(*map(start, targets)))


class LiveTraffic:
    """Merges the recordings of one or more gateways."""

    def __init__(
        self,
        recordings: Sequence[GatewayRecording],
        *,
        duration_s: float,
        wait_s: float,
        interval_s: float = READ_INTERVAL_S,
    ) -> None:
        """`wait_s` is the time to wait for requests that are open at the end."""
        self._recordings = recordings
        self._interval_s = interval_s
        self._deadline_s = time.monotonic() + duration_s + wait_s
        self._start_us = min(each.started_us for each in recordings)
        self._stopped = asyncio.Event()

    @property
    def age_s(self) -> float:
        """Time since the start of the trace."""
        return time.monotonic() - self._start_us / _US

    @property
    def stopped(self) -> bool:
        """Whether the recordings were ended early."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Ends the recordings early."""
        self._stopped.set()

    async def read(self, on_row: OnRow) -> LiveResult:
        """Passes on all rows until the recordings have ended."""
        await asyncio.gather(*(self._read(each, on_row) for each in self._recordings))
        return LiveResult(
            dropped=sum(each.page.dropped for each in self._recordings),
            unfinished=sum(each.page.open for each in self._recordings),
            problems=tuple(f"{each.target.url}: {each.problem}" for each in self._recordings if each.problem),
        )

    async def _read(self, recording: GatewayRecording, on_row: OnRow) -> None:
        offset_us = round(recording.started_us - self._start_us)
        ending = False
        while True:
            for row in recording.page.rows:
                on_row(replace(row, at_us=row.at_us + offset_us))
            if ending and not recording.page.rows:
                return
            ending = ending or self._is_over(recording.page)
            if not recording.page.rows and not ending:
                await self._pause()
                ending = self._stopped.is_set()
            try:
                await recording.read(end=ending, interval_s=self._interval_s)
            except AdminRequestFailed as problem:
                recording.problem = str(problem)
                return

    def _is_over(self, page: TrafficPage) -> bool:
        if self._stopped.is_set():
            return True
        return page.ended and not page.rows and (not page.open or time.monotonic() >= self._deadline_s)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._stopped.wait()
        except TimeoutError:
            pass


def _page(answer: object) -> TrafficPage:
    try:
        return msgspec.convert(answer, TrafficPage)
    except msgspec.ValidationError as error:
        hint = "check that it runs the same version as this command"
        raise AdminRequestFailed(f"the gateway's response is invalid: {error}; {hint}") from None
