"""What is said in a run, from when on does harm begin, and is what was said right?

Harm begins at the end of the first five seconds, since the incident began, in which at least one in twenty of those who
should have had their first token, or their answer at its pace, did not, and at least three. Whoever is refused misses
at once; a first token is missed when its time is over. Where the harm is what it costs, it begins when answers asked
for within ten seconds are a third longer than before the incident.

The verdict is right if within thirty seconds of that moment the incident's cause is told, and no other cause after it
within that time. What is told before the harm begins counts as told at once.

A run in which nothing goes wrong and callers are harmed all the same, by a burst that was too much, is not healthy: it
is left out. What is told in it before the harm is a false alarm, as it is in every other.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from bench.diagnosis.process import Process
from bench.diagnosis.world import INTERACTIVE, Case
from headgate.core.diagnosis.diagnosis import CAUSES, Diagnosis
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND
from headgate.model.verdict import Cause, Incident, Verdict
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Callers
from headgate.simulation.virtual.story import Ending, Sample, Story

WITHIN_S = 30
_HARM_WINDOW_S, _HARM_SHARE, _HARM_COUNT = 5, 0.05, 3
_COST_WINDOW_S, _COST_TIMES = 10, 1.3


@dataclass(slots=True)
class Told:
    at_s: float
    verdict: Verdict


@dataclass(slots=True)
class Result:
    name: str
    seed: int
    incident: Incident
    onset_s: float | None
    """Since the incident began, in a healthy run since its start; None where nobody was harmed."""
    seconds: float | None
    """From the onset to the right cause; None where it was not told in time, or something else was."""
    said: Incident = Incident.HEALTHY
    """The last that was told within the time."""
    alarms: list[str] = field(default_factory=list[str])
    sample: Verdict | None = None

    @property
    def right(self) -> bool:
        return self.seconds is not None


class Audience:
    """Tells the diagnosis how the process is, lets it look every second, and keeps what it says."""

    def __init__(self, case: Case, diagnosis: Diagnosis, process: Process, scheduler: list[Scheduler]) -> None:
        self._case, self._diagnosis, self._process, self._scheduler = case, diagnosis, process, scheduler
        self.told: list[Told] = []
        self.stories: list[Story] = []

    def ended(self, story: Story) -> None:
        self.stories.append(story)

    def sampled(self, sample: Sample) -> None:
        now = sample.at
        if now > self._case.scenario.span_ns:
            return
        self._diagnosis.reported(self._process.report(now), now)
        verdicts = self._diagnosis.look(self._scheduler[0].summary(), now)
        self.told.append(Told(now / SECOND, verdicts[0]))

    def over(self, ending: Ending) -> None:
        del ending


def play(case: Case) -> Audience:
    made: list[Scheduler] = []

    def decider() -> Scheduler:
        made.append(Scheduler())
        return made[-1]

    scenario = replace(case.scenario, decider=decider)
    diagnosis, process = Diagnosis(), Process(case)
    audience = Audience(case, diagnosis, process, made)
    host = VirtualHost(scenario, audience, observers=(diagnosis, process), samples=scenario.span_ns // SECOND)
    process.behind_ns = lambda: host.lag_ns
    host.run()
    return audience


def judge(case: Case) -> Result:
    audience = play(case)
    begins = case.world.begins_s
    result = Result(case.name, case.world.seed, case.incident, None, None)
    if case.incident is Incident.HEALTHY:
        result.onset_s = harm_s(case, audience.stories, 0)
        until = case.scenario.span_ns / SECOND if result.onset_s is None else result.onset_s
        result.alarms = _alarms(audience.told, until)
        return result
    result.alarms = _alarms(audience.told, begins)
    stories = audience.stories
    onset = cost_s(stories, begins) if case.costs else harm_s(case, stories, begins)
    if onset is None:
        return result
    result.onset_s = onset - begins
    _read(case, audience.told, onset, result)
    return result


def _read(case: Case, told: list[Told], onset: float, result: Result) -> None:
    since: float | None = None
    for each in told:
        if each.at_s < case.world.begins_s or each.at_s > onset + WITHIN_S or not _ill(each):
            continue
        result.said, result.sample = each.verdict.incident, each.verdict
        if each.verdict.cause is not CAUSES[case.incident]:
            since = None
        elif since is None:
            since = each.at_s
    result.seconds = None if since is None else max(0.0, since - onset)


def _alarms(told: list[Told], until_s: float) -> list[str]:
    """When each began that was told while nothing was wrong."""
    alarms, before = list[str](), Incident.HEALTHY
    for each in told:
        said = each.verdict.incident
        if _ill(each) and said is not before and each.at_s <= until_s:
            alarms.append(f"{said} at {each.at_s:.0f} s")
        before = said
    return alarms


def _ill(told: Told) -> bool:
    return told.verdict.cause is not Cause.HEALTHY


def harm_s(case: Case, stories: list[Story], since_s: float) -> float | None:
    whole, manners = case.world, case.scenario.callers[INTERACTIVE]
    hurried = (story for story in stories if story.service_class == INTERACTIVE)
    moments = sorted(_fate(story, manners) for story in hurried)
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


def _fate(story: Story, manners: Callers) -> tuple[float, bool]:
    """When it was clear whether it was served as promised, and whether it was not."""
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


def cost_s(stories: list[Story], since_s: float) -> float | None:
    """When what was asked for of late is a third longer than what was before."""
    asked = sorted((each.arrived_at / SECOND, each.answer_tokens) for each in stories)
    before = [tokens for at, tokens in asked if at < since_s]
    usual = sum(before) / max(1, len(before))
    for at, _ in asked:
        late = [tokens for each, tokens in asked if at - _COST_WINDOW_S < each <= at]
        if at >= since_s and len(late) >= _HARM_COUNT and sum(late) / len(late) > _COST_TIMES * usual:
            return at
    return None
