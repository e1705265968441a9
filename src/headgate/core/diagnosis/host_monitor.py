"""Checks, from each process's reports, whether the gateway processes, the store and the database are keeping up."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headgate.core.diagnosis.baseline import LearnedBaseline
from headgate.core.diagnosis.finding import IncidentFinding
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, PoolName, format_seconds
from headgate.model.verdict import HostReport, Incident

PROCESSES_MAX: Final = 256
TRANSPORT_LEARNED_NS_MAX: Final = Duration(MILLISECOND)
"""Maximum excess over the usual connect time that is learned."""
REPORTS: Final = 5
REPORTS_BAD: Final = 3
"""Number of the last `REPORTS` reports that must show a problem, so that a single pause is ignored."""
GONE_NS: Final = Duration(15 * SECOND)
"""Time without a report after which a process is considered gone."""
LAGS_BAD: Final = 4
"""Number of the last `REPORTS` reports in which the event loop must lag, so that brief load from other programs is
ignored."""
LAG_NS: Final = Duration(250 * MILLISECOND)
BUSY_PERCENT: Final = 70
LAG_LONG_NS: Final = Duration(SECOND)
"""Lag thresholds. The lower one applies if the process is busy (running or waiting for a CPU), so that its own work
makes it late. The higher one applies if other programs delay it."""
SATURATED_PERCENT: Final = 90
SATURATED_LAG_NS: Final = Duration(100 * MILLISECOND)
"""Lag threshold of a saturated process. It is lower because a request needs several turns of the event loop and each
turn is delayed."""
STORE_NS: Final = Duration(20 * MILLISECOND)
STORE_TIMES: Final = 5
STORE_UNKNOWN_NS: Final = Duration(200 * MILLISECOND)
"""Threshold used when there is no baseline. A remote store may always have been slow."""


class HostReports:
    __slots__ = ("at", "reports")

    def __init__(self) -> None:
        self.reports: deque[HostReport] = deque(maxlen=REPORTS)
        self.at = Instant(0)


class HostMonitor:
    __slots__ = ("_hosts", "_lag", "_store", "_transport")

    def __init__(self) -> None:
        self._hosts: dict[str, HostReports] = {}
        self._store, self._lag = LearnedBaseline(), LearnedBaseline()
        self._transport: dict[PoolName, LearnedBaseline] = {}

    def record(self, report: HostReport, now: Instant) -> None:
        host = self._hosts.get(report.process)
        if host is None:
            if len(self._hosts) >= PROCESSES_MAX:
                self._forget(now)
            if len(self._hosts) >= PROCESSES_MAX:
                return
            host = self._hosts[report.process] = HostReports()
        host.reports.append(report)
        host.at = now

    def _forget(self, now: Instant) -> None:
        self._hosts = {name: each for name, each in self._hosts.items() if now - each.at < GONE_NS}

    def learn(self) -> None:
        """Learns the usual values from the oldest report kept.

        Later reports may already show the start of an incident.
        """
        for host in self._hosts.values():
            first = host.reports[0]
            self._lag.add(first.loop_lag_ns)
            if first.store_ns is not None:
                self._store.add(first.store_ns)

    def learn_transport(self, pool: PoolName) -> None:
        told = self.transport_ns(pool)
        if told is not None:
            usual = self._transport.setdefault(pool, LearnedBaseline())
            # A connection whose first packet is lost takes a second longer. Such a time must not become the usual
            # value.
            usual.add(told if usual.value is None else min(told, TRANSPORT_LEARNED_NS_MAX + usual.value))

    def transport_ns(self, pool: PoolName) -> Duration | None:
        """Returns the median over the slowest process's last reports, minus its event loop lag."""
        worst: Duration | None = None
        for host in self._hosts.values():
            times = sorted(
                max(0, ns - each.loop_lag_ns) for each in host.reports for name, ns in each.connect_ns if name == pool
            )
            if times and (worst is None or times[len(times) // 2] > worst):
                worst = Duration(times[len(times) // 2])
        return worst

    def transport_usual_ns(self, pool: PoolName) -> Duration | None:
        usual = self._transport.get(pool)
        return None if usual is None else usual.value

    def find_incident(self, now: Instant) -> IncidentFinding | None:
        self._forget(now)
        for name, host in self._hosts.items():
            one = (
                _resource_shortage(name, host, partial=False)
                or self._behind(name, host)
                or self._store_slow(name, host)
            )
            one = one or _database_down(name, host) or _resource_shortage(name, host, partial=True)
            if one is not None:
                return one
        return None

    def _behind(self, name: str, host: HostReports) -> IncidentFinding | None:
        late = [each for each in host.reports if _is_late(each)]
        if len(late) < LAGS_BAD:
            return None
        last, usual = late[-1], self._lag.value
        before = "unknown" if usual is None else format_seconds(usual)
        return IncidentFinding(
            Incident.SCHEDULER_BEHIND,
            f"Process {name} is falling behind: its event loop is {format_seconds(last.loop_lag_ns)} late, usually "
            f"{before}. It uses {last.cpu_percent}% of a CPU and waits for a CPU {last.cpu_wait_percent}% of the time.",
            (
                f"event loop up to {format_seconds(last.loop_lag_ns)} late, usually {before}",
                f"{last.cpu_percent}% of a CPU in use, {last.decide_percent}% of the time spent on decisions",
                f"{last.cpu_wait_percent}% of the time spent waiting for a CPU",
            ),
            "Give the process a dedicated CPU, or add gateways to the cell. Check what else is running on its machine "
            "(`headgate doctor`).",
        )

    def _store_slow(self, name: str, host: HostReports) -> IncidentFinding | None:
        usual = self._store.value
        most = STORE_UNKNOWN_NS if usual is None else max(STORE_NS, STORE_TIMES * usual)
        down = sum(not each.store_up for each in host.reports)
        slow = [took for took in _store_waits(host.reports) if took >= most]
        if down + len(slow) < REPORTS_BAD:
            return None
        before = "unknown" if usual is None else format_seconds(usual)
        now = f"takes {format_seconds(slow[-1])}" if slow else "gets no response"
        return IncidentFinding(
            Incident.STORE_SLOW,
            f"A round trip to the cell's store {now}, usually {before}. Every request needs four round trips.",
            (f"a round trip to the store from {name} {now}, usually {before}",),
            "Check the store's CPU, memory and network (`headgate doctor` probes it). Gateways continue on their own "
            "if the store is lost.",
        )


def _store_waits(reports: Sequence[HostReport]) -> Iterator[Duration]:
    """Yields store round-trip times, minus the time by which this process was late in reading the response.

    A round trip covers the last two seconds, so the lag of the previous report counts too.
    """
    lag_ns = Duration(0)
    for each in reports:
        if each.store_ns is not None:
            yield Duration(each.store_ns - max(lag_ns, each.loop_lag_ns))
        lag_ns = each.loop_lag_ns


def _is_late(report: HostReport) -> bool:
    wanted_percent = report.cpu_percent + report.cpu_wait_percent
    if wanted_percent >= SATURATED_PERCENT:
        return report.loop_lag_ns >= SATURATED_LAG_NS
    return report.loop_lag_ns >= (LAG_NS if wanted_percent >= BUSY_PERCENT else LAG_LONG_NS)


def _resource_shortage(name: str, host: HostReports, *, partial: bool) -> IncidentFinding | None:
    reports = [[each for each in report.shortages if each.partial is partial] for report in host.reports]
    short = [each[0] for each in reports if each]
    if len(short) < REPORTS_BAD:
        return None
    last = short[-1]
    lacks = "cannot resolve names" if partial else "lacks a resource"
    return IncidentFinding(
        Incident.GATEWAY_RESOURCES,
        f"Process {name} {lacks}: {last.description}.",
        tuple(dict.fromkeys(each.description for each in reports[-1])) or (last.description,),
        last.remedy,
        partial=partial,
    )


def _database_down(name: str, host: HostReports) -> IncidentFinding | None:
    gone = sum(each.database_up is False for each in host.reports)
    if gone < REPORTS:
        return None
    return IncidentFinding(
        Incident.STORE_SLOW,
        f"The database is not responding to {name}. The last known keys and budgets stay in use.",
        (f"database unavailable in {gone} of the last {REPORTS} reports of {name}",),
        "Check the database (`headgate doctor` probes it). Requests with known keys are still served.",
    )
