"""Simulation and evaluation of one run: verdicts, onset of harm and correctness.

Harm starts at the end of the first five-second interval after the start of the incident in which at least one in twenty
interactive requests, and at least three, missed their TTFT or TPOT target. A rejected request counts as a miss
immediately. A first token counts as a miss once its target has passed. If the harm is cost, it starts when the
responses requested within ten seconds are a third longer than before the incident.

The verdict is correct if the cause of the incident is reported within thirty seconds of that time and no other cause is
reported between then and the end of those thirty seconds. A verdict before the onset of harm counts as immediate.

A run without a fault in which callers are affected anyway, for example by a large burst, is not healthy and is
excluded. As in every other run, a verdict before the onset of harm is a false alarm.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from bench.diagnosis.simulated_process import SimulatedProcess
from bench.diagnosis.world import INTERACTIVE, Case
from headgate.core.diagnosis.diagnosis import CAUSES, Diagnosis
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND
from headgate.model.verdict import Cause, Incident, Verdict
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import FleetSample, RequestTrace, RunSummary

WITHIN_S = 30
_HARM_WINDOW_S, _HARM_SHARE, _HARM_COUNT = 5, 0.05, 3
_COST_WINDOW_S, _COST_TIMES = 10, 1.3


@dataclass(slots=True)
class TimedVerdict:
    at_s: float
    verdict: Verdict


@dataclass(slots=True)
class Result:
    name: str
    seed: int
    incident: Incident
    onset_s: float | None
    """Onset of harm in seconds since the start of the incident or healthy run. None if no caller was affected."""
    seconds: float | None
    """Seconds from the onset to the correct cause. None if the cause was not reported in time or was replaced by
    another cause.
    """
    diagnosed: Incident = Incident.HEALTHY
    """Last incident reported in time."""
    alarms: list[str] = field(default_factory=list[str])
    sample: Verdict | None = None

    @property
    def correct(self) -> bool:
        return self.seconds is not None


class VerdictRecorder:
    """Observer that sends process reports to the diagnosis every second and records its verdicts."""

    def __init__(self, case: Case, diagnosis: Diagnosis, process: SimulatedProcess, scheduler: list[Scheduler]) -> None:
        self._case, self._diagnosis, self._process, self._scheduler = case, diagnosis, process, scheduler
        self.verdicts: list[TimedVerdict] = []
        self.traces: list[RequestTrace] = []

    def request_ended(self, story: RequestTrace) -> None:
        self.traces.append(story)

    def sample_taken(self, sample: FleetSample) -> None:
        now = sample.at
        if now > self._case.scenario.span_ns:
            return
        self._diagnosis.record_host_report(self._process.report(now), now)
        verdicts = self._diagnosis.diagnose(self._scheduler[0].summary(), now)
        self.verdicts.append(TimedVerdict(now / SECOND, verdicts[0]))

    def run_ended(self, ending: RunSummary) -> None:
        del ending


def run_case(case: Case) -> VerdictRecorder:
    made: list[Scheduler] = []

    def decider() -> Scheduler:
        made.append(Scheduler())
        return made[-1]

    scenario = replace(case.scenario, decider=decider)
    diagnosis, process = Diagnosis(), SimulatedProcess(case)
    audience = VerdictRecorder(case, diagnosis, process, made)
    host = VirtualHost(scenario, audience, observers=(diagnosis, process), samples=scenario.span_ns // SECOND)
    process.behind_ns = lambda: host.lag_ns
    host.run()
    return audience


def score_case(case: Case) -> Result:
    audience = run_case(case)
    begins = case.world.begins_s
    result = Result(case.name, case.world.seed, case.incident, None, None)
    if case.incident is Incident.HEALTHY:
        result.onset_s = harm_s(case, audience.traces, 0)
        until = case.scenario.span_ns / SECOND if result.onset_s is None else result.onset_s
        result.alarms = _alarms(audience.verdicts, until)
        return result
    result.alarms = _alarms(audience.verdicts, begins)
    stories = audience.traces
    onset = cost_s(stories, begins) if case.costs else harm_s(case, stories, begins)
    if onset is None:
        return result
    result.onset_s = onset - begins
    _score_verdicts(case, audience.verdicts, onset, result)
    return result


def _score_verdicts(case: Case, told: list[TimedVerdict], onset: float, result: Result) -> None:
    since: float | None = None
    for each in told:
        if each.at_s < case.world.begins_s or each.at_s > onset + WITHIN_S or not _is_incident(each):
            continue
        result.diagnosed, result.sample = each.verdict.incident, each.verdict
        if each.verdict.cause is not CAUSES[case.incident]:
            since = None
        elif since is None:
            since = each.at_s
    result.seconds = None if since is None else max(0.0, since - onset)


def _alarms(told: list[TimedVerdict], until_s: float) -> list[str]:
    """Verdicts that started before `until_s`, with their times."""
    alarms, before = list[str](), Incident.HEALTHY
    for each in told:
        said = each.verdict.incident
        if _is_incident(each) and said is not before and each.at_s <= until_s:
            alarms.append(f"{said} at {each.at_s:.0f} s")
        before = said
    return alarms


def _is_incident(told: TimedVerdict) -> bool:
    return told.verdict.cause is not Cause.HEALTHY


def harm_s(case: Case, stories: list[RequestTrace], since_s: float) -> float | None:
    whole, manners = case.world, case.scenario.callers[INTERACTIVE]
    hurried = (story for story in stories if story.service_class == INTERACTIVE)
    moments = sorted(_harm_of(story, manners) for story in hurried)
    window: deque[tuple[float, bool]] = deque()
    bad = 0
    for at, missed in moments:
        if at < since_s or at > whole.begins_s + whole.tail_s:
            continue
        window.append((at, missed))
        bad += missed
        while window[0][0] < at - _HARM_WINDOW_S:
            bad -= window.popleft()[1]
        if bad >= _HARM_COUNT and bad >= _HARM_SHARE * len(window):
            return at
    return None


def _harm_of(story: RequestTrace, manners: CallerBehaviour) -> tuple[float, bool]:
    """Time in seconds at which it became clear whether the request met its targets, and whether it missed them."""
    begun, ttft_ns, tpot_ns = story.first_token_at, manners.ttft_ns, manners.tpot_ns
    if ttft_ns is None or tpot_ns is None:
        return story.ended_at / SECOND, story.outcome is not Outcome.COMPLETED
    if begun is None:
        return min(story.ended_at, story.arrived_at + ttft_ns) / SECOND, True
    if begun - story.arrived_at > ttft_ns:
        return (story.arrived_at + ttft_ns) / SECOND, True
    allowed = tpot_ns * max(0, story.output_tokens - 1)
    if story.outcome is not Outcome.COMPLETED or story.ended_at - begun > allowed:
        return min(story.ended_at, begun + allowed) / SECOND, True
    return begun / SECOND, False


def cost_s(stories: list[RequestTrace], since_s: float) -> float | None:
    """Time at which responses to recent requests became a third longer than those before the incident."""
    asked = sorted((each.arrived_at / SECOND, each.full_output_tokens) for each in stories)
    before = [tokens for at, tokens in asked if at < since_s]
    usual = sum(before) / max(1, len(before))
    for at, _ in asked:
        late = [tokens for each, tokens in asked if at - _COST_WINDOW_S < each <= at]
        if at >= since_s and len(late) >= _HARM_COUNT and sum(late) / len(late) > _COST_TIMES * usual:
            return at
    return None
