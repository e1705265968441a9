"""Do the processes that serve keep up, and what they depend on beside engines?"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headgate.core.diagnosis.finding import Found
from headgate.core.diagnosis.usual import Usual
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, PoolName, seconds
from headgate.model.verdict import HostReport, Incident

PROCESSES_MAX: Final = 256
TRANSPORT_NS: Final = Duration(MILLISECOND)
"""By no more than this a connection counts above what is usual, when that is learned."""
REPORTS: Final = 5
REPORTS_BAD: Final = 3
"""Of the last five reports so many must say it: a single pause is nobody's concern."""
GONE_NS: Final = Duration(15 * SECOND)
"""Who has not reported for so long is not there any more."""
LAGS_BAD: Final = 4
"""A machine that is busy with something else for a moment makes any process late."""
LAG_NS: Final = Duration(250 * MILLISECOND)
BUSY_PERCENT: Final = 70
LAG_LONG_NS: Final = Duration(SECOND)
"""A loop is late for its own work where the process is busy: it runs, or waits for a processor. Where it is not, it is
kept waiting by others: that must be longer to be told."""
SATURATED_PERCENT: Final = 90
SATURATED_LAG_NS: Final = Duration(100 * MILLISECOND)
"""A saturated process counts as behind from this lag on, because each request needs several turns of the loop, and each
turn is delayed."""
STORE_NS: Final = Duration(20 * MILLISECOND)
STORE_TIMES: Final = 5
STORE_UNKNOWN_NS: Final = Duration(200 * MILLISECOND)
"""Where nothing is usual yet, so much is slow by itself: a store may be far away and always have been."""


class HostSeen:
    __slots__ = ("at", "reports")

    def __init__(self) -> None:
        self.reports: deque[HostReport] = deque(maxlen=REPORTS)
        self.at = Instant(0)


class HostsSeen:
    __slots__ = ("_hosts", "_lag", "_store", "_transport")

    def __init__(self) -> None:
        self._hosts: dict[str, HostSeen] = {}
        self._store, self._lag = Usual(), Usual()
        self._transport: dict[PoolName, Usual] = {}

    def reported(self, report: HostReport, now: Instant) -> None:
        host = self._hosts.get(report.process)
        if host is None:
            if len(self._hosts) >= PROCESSES_MAX:
                self._forget(now)
            if len(self._hosts) >= PROCESSES_MAX:
                return
            host = self._hosts[report.process] = HostSeen()
        host.reports.append(report)
        host.at = now

    def _forget(self, now: Instant) -> None:
        self._hosts = {name: each for name, each in self._hosts.items() if now - each.at < GONE_NS}

    def learn(self) -> None:
        """All is well: what was told a few reports ago is usual. What came since may be the beginning of trouble."""
        for host in self._hosts.values():
            first = host.reports[0]
            self._lag.add(first.loop_lag_ns)
            if first.store_ns is not None:
                self._store.add(first.store_ns)

    def learn_transport(self, pool: PoolName) -> None:
        told = self.transport_ns(pool)
        if told is not None:
            usual = self._transport.setdefault(pool, Usual())
            # A connection that had to ask twice takes a second: one of these must not become usual.
            usual.add(told if usual.value is None else min(told, TRANSPORT_NS + usual.value))

    def transport_ns(self, pool: PoolName) -> Duration | None:
        """The median of the last reports of the slowest process, without the time for which its event loop was late."""
        worst: Duration | None = None
        for host in self._hosts.values():
            times = sorted(
                max(0, ns - each.loop_lag_ns) for each in host.reports for name, ns in each.transport_ns if name == pool
            )
            if times and (worst is None or times[len(times) // 2] > worst):
                worst = Duration(times[len(times) // 2])
        return worst

    def transport_usual_ns(self, pool: PoolName) -> Duration | None:
        usual = self._transport.get(pool)
        return None if usual is None else usual.value

    def found(self, now: Instant) -> Found | None:
        self._forget(now)
        for name, host in self._hosts.items():
            one = _short(name, host, partial=False) or self._behind(name, host) or self._store_slow(name, host)
            one = one or _database_gone(name, host) or _short(name, host, partial=True)
            if one is not None:
                return one
        return None

    def _behind(self, name: str, host: HostSeen) -> Found | None:
        late = [each for each in host.reports if _is_late(each)]
        if len(late) < LAGS_BAD:
            return None
        last, usual = late[-1], self._lag.value
        before = "unknown" if usual is None else seconds(usual)
        return Found(
            Incident.SCHEDULER_BEHIND,
            f"Process {name} falls behind: its event loop is {seconds(last.loop_lag_ns)} late, usually {before}, and "
            f"uses {last.cpu_percent}% of a processor and waits for one {last.wait_percent}% of the time.",
            (
                f"event loop up to {seconds(last.loop_lag_ns)} late, usually {before}",
                f"{last.cpu_percent}% of a processor in use, {last.decide_percent}% of the time spent deciding",
                f"{last.wait_percent}% of the time spent waiting for a processor",
            ),
            "Give it a processor of its own, or add gateways to the cell; look at what else runs on its machine "
            "(`headgate doctor`).",
        )

    def _store_slow(self, name: str, host: HostSeen) -> Found | None:
        usual = self._store.value
        most = STORE_UNKNOWN_NS if usual is None else max(STORE_NS, STORE_TIMES * usual)
        down = sum(not each.store_up for each in host.reports)
        slow = [took for took in _store_waits(host.reports) if took >= most]
        if down + len(slow) < REPORTS_BAD:
            return None
        before = "unknown" if usual is None else seconds(usual)
        now = f"takes {seconds(slow[-1])}" if slow else "does not answer"
        return Found(
            Incident.STORE_SLOW,
            f"The store of the cell {now}, usually {before}, and every request passes it four times.",
            (f"a round trip to the store as {name} sees it {now}, usually {before}",),
            "Look at the store: its processor, its memory, its network (`headgate doctor` asks it); gateways go on "
            "alone if it is lost.",
        )


def _store_waits(reports: Sequence[HostReport]) -> Iterator[Duration]:
    """Round trips to the store without the time for which this process was late to read the answer.

    A round trip covers the last two seconds, so the lag of the previous report counts too.
    """
    lag_ns = Duration(0)
    for each in reports:
        if each.store_ns is not None:
            yield Duration(each.store_ns - max(lag_ns, each.loop_lag_ns))
        lag_ns = each.loop_lag_ns


def _is_late(report: HostReport) -> bool:
    wanted_percent = report.cpu_percent + report.wait_percent
    if wanted_percent >= SATURATED_PERCENT:
        return report.loop_lag_ns >= SATURATED_LAG_NS
    return report.loop_lag_ns >= (LAG_NS if wanted_percent >= BUSY_PERCENT else LAG_LONG_NS)


def _short(name: str, host: HostSeen, *, partial: bool) -> Found | None:
    reports = [[each for each in report.shortages if each.partial is partial] for report in host.reports]
    short = [each[0] for each in reports if each]
    if len(short) < REPORTS_BAD:
        return None
    last = short[-1]
    lacks = "cannot resolve names" if partial else "lacks a resource"
    return Found(
        Incident.GATEWAY_RESOURCES,
        f"Process {name} {lacks}: {last.what}.",
        tuple(dict.fromkeys(each.what for each in reports[-1])) or (last.what,),
        last.remedy,
        partial=partial,
    )


def _database_gone(name: str, host: HostSeen) -> Found | None:
    gone = sum(each.database_up is False for each in host.reports)
    if gone < REPORTS:
        return None
    return Found(
        Incident.STORE_SLOW,
        f"The database does not answer {name}: keys and budgets stay as they were last read.",
        (f"{gone} of the last {REPORTS} reports of {name} say that the database does not answer",),
        "Look at the database (`headgate doctor` asks it); requests of known keys go on meanwhile.",
    )
