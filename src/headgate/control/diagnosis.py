"""How does a gateway come to say what is wrong?

Where decisions are made the machine sees them all; every second the process reports of itself, and the machine looks.
A process that decides nothing has no pools to speak of: it says how it is itself, and in a cell whoever decides says
the rest. Who begins to decide begins to learn.
"""

from collections.abc import Callable, Sequence

from headgate.core.commands import Command
from headgate.core.diagnosis.diagnosis import Diagnosis
from headgate.core.events import Event
from headgate.core.summary import Summary
from headgate.model.units import Instant
from headgate.model.verdict import HostReport, Verdict
from headgate.telemetry.host_report import HostReporter, HostSources, report_for_ever


class LiveDiagnosis:
    """An observer where decisions are made."""

    def __init__(self, *, operable: bool = False) -> None:
        """`operable` is whether operators can place orders here (`headgate operate`)."""
        self._operable = operable
        self._machine = Diagnosis(operable=operable)
        self._decided = True
        self.verdicts: Sequence[Verdict] = ()
        """As of the last look, the worst first."""

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self._machine.saw(event, commands, now)

    async def run(
        self,
        sources: HostSources,
        *,
        summary: Callable[[], Summary],
        decides: Callable[[], bool],
        now: Callable[[], Instant],
    ) -> None:
        await report_for_ever(HostReporter(sources), lambda report: self._look(report, summary(), now(), decides()))

    def _look(self, report: HostReport, summary: Summary, now: Instant, decides: bool) -> None:  # noqa: FBT001
        if self._decided and not decides:
            # What was learned of pools is another's to know from here on.
            self._machine = Diagnosis(operable=self._operable)
        self._decided = decides
        self._machine.reported(report, now)
        self.verdicts = self._machine.look(summary, now)
