"""Runs the diagnosis in a gateway.

In a process that makes scheduling decisions, the diagnosis observes all of them. Once a second, the process reports its
own health and the diagnosis updates its verdicts. Other processes have no information about pools. They report only
their own health, and the cell's scheduler reports on the pools. A process that becomes the scheduler starts with an
empty diagnosis.
"""

from collections.abc import Callable, Sequence

from headgate.core.commands import Command
from headgate.core.diagnosis.diagnosis import Diagnosis
from headgate.core.events import Event
from headgate.core.summary import Summary
from headgate.model.units import Instant
from headgate.model.verdict import HostReport, Verdict
from headgate.telemetry.host_report import HostReporter, HostSources, run_reporter


class DiagnosisService:
    """Diagnosis that observes this process's decisions."""

    def __init__(self, *, has_operators: bool = False) -> None:
        """Creates the service. `has_operators` is true if operators can create overrides here (`headgate operate`)."""
        self._operable = has_operators
        self._machine = Diagnosis(overrides_enabled=has_operators)
        self._decided = True
        self.verdicts: Sequence[Verdict] = ()
        """Verdicts from the last update, worst first."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self._machine.observe(event, commands, now)

    async def run(
        self,
        sources: HostSources,
        *,
        summary: Callable[[], Summary],
        decides: Callable[[], bool],
        now: Callable[[], Instant],
    ) -> None:
        await run_reporter(HostReporter(sources), lambda report: self._update(report, summary(), now(), decides()))

    def _update(self, report: HostReport, summary: Summary, now: Instant, decides: bool) -> None:  # noqa: FBT001
        if self._decided and not decides:
            # Another process now observes the pools, so the state learned here is obsolete.
            self._machine = Diagnosis(overrides_enabled=self._operable)
        self._decided = decides
        self._machine.record_host_report(report, now)
        self.verdicts = self._machine.diagnose(summary, now)
