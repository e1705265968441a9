"""Runs the share controller: sends its messages to the gateways' admin listeners and passes on their reports.

A round sends one message to each process, all at the same time. A process that does not respond before the next round
is treated as if the message were lost.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import aiohttp
import msgspec

from headgate.control.cells.admin_access import AdminAccess
from headgate.control.cells.messages import ProcessReport, ShareMessage
from headgate.control.cells.options import CellFleet
from headgate.control.cells.share_controller import ShareController
from headgate.model.limits import LimitShare
from headgate.model.units import MILLISECOND, SECOND
from headgate.ports.tls import InvalidTlsFile
from headgate.telemetry.log import log_event

SHARES_PER_BODY_MAX: Final = 500
"""Maximum number of shares in one request, so that its body stays within the limit of the admin API."""
_ASSIGN, _REPORT = "assign", "report"


class ProcessUnavailable(Exception):
    """A process did not report. The message gives the reason."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class SharesClient:
    """Calls the share paths of gateways' admin APIs."""

    def __init__(self, session: aiohttp.ClientSession, access: AdminAccess, *, timeout_s: float) -> None:
        self._session = session
        self.access = access
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def assign(self, message: ShareMessage) -> ProcessReport:
        """Sends a message and returns the report. Raises `ProcessUnavailable`.

        A process that has been downgraded rejects separate token shares. Its report shows its version.
        """
        try:
            return await self._assign(message)
        except ProcessUnavailable as problem:
            if problem.status != 400 or not message.token_shares:
                raise
        return await self.report(message.process)

    async def _assign(self, message: ShareMessage) -> ProcessReport:
        shares = list(message.shares.items())
        pages = [shares[at : at + SHARES_PER_BODY_MAX] for at in range(0, len(shares), SHARES_PER_BODY_MAX)] or [[]]
        body: dict[str, object] = {
            "epoch": message.epoch,
            "version": message.version,
            "session": message.session,
            "stamp_ns": message.stamp_ns,
            "lease_ns": message.lease_ns,
        }
        for page in pages[:-1]:
            await self._post(message.process, _ASSIGN, body | _page(message, page))
        return await self._post(message.process, _ASSIGN, body | _page(message, pages[-1]))

    async def report(self, process: str) -> ProcessReport:
        """Returns the report of a process without changing anything. Raises `ProcessUnavailable`."""
        return await self._post(process, _REPORT, {})

    async def _post(self, process: str, path: str, body: Mapping[str, object]) -> ProcessReport:
        try:
            context = self.access.context(process)
        except InvalidTlsFile as problem:
            raise ProcessUnavailable(str(problem)) from None
        try:
            async with self._session.post(
                f"{process}/admin/v1/shares/{path}",
                json=body,
                headers=self.access.headers(process),
                ssl=True if context is None else context,
                timeout=self._timeout,
                allow_redirects=False,
            ) as answer:
                said = await answer.read()
                if answer.status != 200:
                    raise ProcessUnavailable(_problem(answer.status, said), answer.status)
        except TimeoutError:
            raise ProcessUnavailable(f"no response within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProcessUnavailable(str(error) or type(error).__name__) from None
        try:
            return msgspec.json.decode(said, type=ProcessReport)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ProcessUnavailable("the response is not a report; check the admin URL") from None


def _page(message: ShareMessage, shares: Sequence[tuple[str, int]]) -> dict[str, object]:
    page: dict[str, object] = {"shares": dict(shares)}
    tokens = message.token_shares
    # A process of an older version rejects fields that it does not know.
    return page | {"token_shares": {name: tokens[name] for name, _ in shares if name in tokens}} if tokens else page


def _problem(status: int, said: bytes) -> str:
    if status == 404:
        return "this process has no shares; set cell.share_floor_percent below 100 in its configuration and restart it"
    try:
        message = str(msgspec.json.decode(said)["error"]["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        message = "no details"
    return f"status {status}: {message}"


class ControllerService:
    """Runs a controller until another one takes over."""

    def __init__(
        self, fleet: CellFleet, client: SharesClient, *, reload: Callable[[], CellFleet | None], epoch: int
    ) -> None:
        """`reload` returns the file's content if it has changed since the last call, otherwise None."""
        self._client = client
        self._reload = reload
        self._controller = ShareController(fleet, epoch, time.monotonic_ns())
        self._problems: dict[str, str] = {}
        self._shown: Mapping[str, Mapping[str, LimitShare]] = {}

    async def run(self) -> None:
        while not self._controller.superseded:
            began = time.monotonic_ns()
            if (fleet := self._reload()) is not None:
                self._client.access.change_fleet(fleet)
                self._controller.change_fleet(fleet, began)
                log_event(logging.INFO, "the list of cells has changed", cells=len(fleet.cells))
            messages = self._controller.next_round(began)
            self._log_shares()
            await asyncio.gather(*(self._deliver(message) for message in messages))
            rest_ns = began + self._controller.fleet.interval_ns - time.monotonic_ns()
            await asyncio.sleep(max(MILLISECOND, rest_ns) / SECOND)
        log_event(logging.WARNING, "another controller has taken over; this one stops", epoch=self._controller.epoch)

    async def _deliver(self, message: ShareMessage) -> None:
        try:
            report = await self._client.assign(message)
        except ProcessUnavailable as problem:
            self._note(message.process, str(problem))
            return
        self._note(message.process, self._floor_problem(report))
        self._controller.receive(message.process, report, time.monotonic_ns())

    def _floor_problem(self, report: ProcessReport) -> str:
        floor = self._controller.fleet.share_floor_ppm
        if report.floor_ppm <= floor:
            return ""
        return (
            f"its cell.share_floor_percent is {report.floor_ppm / 10_000:g}, above the {floor / 10_000:g} in the list "
            "of cells; set both to the same value"
        )

    def _note(self, process: str, problem: str) -> None:
        if problem == self._problems.get(process, ""):
            return
        self._problems[process] = problem
        if problem:
            log_event(logging.WARNING, "a gateway has a problem", process=process, problem=problem)
        else:
            log_event(logging.INFO, "a gateway responds again", process=process)

    def _log_shares(self) -> None:
        shares = self._controller.shares()
        for account, by_cell in shares.items():
            if by_cell != self._shown.get(account):
                text = " ".join(f"{cell}={_share_text(share)}" for cell, share in by_cell.items())
                log_event(logging.INFO, "shares changed", tenant=account, shares=text)
        self._shown = shares


def _share_text(share: LimitShare) -> str:
    requests, tokens = (f"{ppm / 10_000:g}%" for ppm in share)
    return requests if tokens == requests else f"{requests}/{tokens}"


async def read_reports(
    client: SharesClient, processes: Sequence[str]
) -> Mapping[str, ProcessReport | ProcessUnavailable]:
    """Returns the report of each process, or why there is none."""

    async def read(process: str) -> ProcessReport | ProcessUnavailable:
        try:
            return await client.report(process)
        except ProcessUnavailable as problem:
            return problem

    return dict(zip(processes, await asyncio.gather(*map(read, processes)), strict=True))
