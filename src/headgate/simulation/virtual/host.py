"""How do events reach the scheduler, and its commands the engines, when time is only a number?

The twin of `hosts/local/host.py`: the same decider, told the same events. Time jumps from one instant at which
something happens to the next. Within an instant all that is due is done first, whatever it leads to, and only then are
the engines asked when they go on: a step takes in all that came up to the instant at which it starts.

What a live gateway does around its scheduler is done here in the same way: limits of attempts are looked at and
progress is reported in sweeps; an engine that starts is looked at ever less often until it answers; one that dies
breaks its connections at once, and as in life nobody says that it is gone: attempts that fail there show it. What is
not here, unless the scenario has ways: the gateway's own milliseconds, and the network's.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headgate.core.commands import Abort, BudgetCrossed, Command, Dispatch, Eject, End, Hold, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    EndpointJoined,
    EndpointMeasured,
    EndpointReadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    TimerFired,
)
from headgate.model.endpoint import Endpoint
from headgate.model.fault import Fault
from headgate.model.units import MILLISECOND, MINUTE, Duration, EndpointId, Instant, after, seconds
from headgate.model.usage import Usage, UsageSource
from headgate.ports.observer import Observer
from headgate.simulation.engine import sequence
from headgate.simulation.virtual.crowd import Crowd
from headgate.simulation.virtual.desk import Desk
from headgate.simulation.virtual.disturbances import Disturbances
from headgate.simulation.virtual.endpoint import OpenAttempt, VirtualEndpoint, engine_id
from headgate.simulation.virtual.scenario import (
    Scenario,
    Scraper,
)
from headgate.simulation.virtual.story import Audience, Ending, Sample
from headgate.simulation.virtual.timeline import LOOKS, Timeline
from headgate.simulation.virtual.ways import Delays

_Subject = TypeVar("_Subject")

STRAGGLERS_NS_MAX = Duration(30 * 24 * 60 * MINUTE)
"""How long after the last arrival everything must be over; else somebody waits for ever."""
WAKES_MAX = 3
"""At one instant. What an endpoint that stalls gives back may have waited for too long already: it is due at once."""
FIRST_PAUSE_NS = Duration(500 * MILLISECOND)
"""Between the first two looks at an engine that is starting; each further pause is twice the one before."""

_REFUSED: Final = "connection refused"
_ERROR: Final = "it answered 500"
_BROKEN: Final = "the connection was broken"
_INCOMPLETE: Final = "not complete within"
_FAULTS: Final = {_REFUSED: Fault.CONNECTION, _ERROR: Fault.ANSWER, _BROKEN: Fault.CONNECTION}


class VirtualHost:
    def __init__(
        self, scenario: Scenario, audience: Audience, *, observers: Sequence[Observer] = (), samples: int = 600
    ) -> None:
        self._scenario = scenario
        self._audience = audience
        self._desk = Desk(scenario.decider(), self._perform, observers)
        self._timeline = Timeline()
        ways = scenario.ways
        self._delays = None if ways is None else Delays(ways, self._timeline, self._desk.tell)
        self._now = Instant(0)
        self._endpoints = {spec.id: VirtualEndpoint(spec, rank) for rank, spec in enumerate(scenario.engines)}
        self._to_ask: dict[EndpointId, VirtualEndpoint] = {}
        """Those whose next moment may have changed, and must be asked for when the instant is over; an ordered set."""
        self._crowd = Crowd(
            scenario.arrivals(),
            self._timeline,
            callers=scenario.callers,
            model=scenario.model,
            seed=scenario.seed,
            tell=self._desk.tell if self._delays is None else self._tell_from_caller,
            ended=audience.ended,
        )
        self._disturbances = Disturbances(
            self._endpoints,
            self._timeline,
            now=lambda: self._now,
            tell=self._desk.tell,
            advance=self._advance,
            break_off=self._break_off,
        )
        self._samples = samples
        self._progress: Callable[[Instant, int], None] | None = None

    @property
    def lag_ns(self) -> Duration:
        """How far deciding is behind what has happened."""
        return Duration(0) if self._delays is None else self._delays.lag_ns(self._now)

    def run(self, progress: Callable[[Instant, int], None] | None = None) -> None:
        """To the end of the last request. `progress` is told the time and how many requests are over."""
        self._progress = progress
        self._open()
        last = after(Instant(self._scenario.span_ns), STRAGGLERS_NS_MAX)
        while self._crowd.unfinished:
            self._do_all_of_an_instant()
            assert self._now < last, "requests are still open a month after the last arrival"
        assert not any(each.attempts for each in self._endpoints.values()), "an attempt outlived its request"
        for endpoint in self._endpoints.values():
            endpoint.finish_step()
        accounts = tuple(each.account(self._now) for each in self._endpoints.values())
        self._audience.over(Ending(self._now, self._desk.events, accounts))

    # ----------------------------------------------------------------------------------------------------------- time

    def _open(self) -> None:
        scenario, timeline = self._scenario, self._timeline
        self._desk.tell(PolicyChanged(scenario.policy, f"scenario {scenario.seed}"))
        for endpoint in self._endpoints.values():
            if endpoint.spec.starts_at > self._now:
                timeline.at(endpoint.spec.starts_at, self._join, endpoint)
            else:
                self._join(endpoint)
        for fault in scenario.faults:
            timeline.at(fault.at, self._disturbances.befall, fault)
        for change in scenario.changes:
            timeline.at(change.at, self._disturbances.change, change)
        timeline.at(Instant(self._until_sample()), self._sample, None, rank=LOOKS)
        timeline.at(Instant(scenario.progress_every_ns), self._sweep, scenario.progress_every_ns)
        if isinstance(self._desk.decider, Scraper):
            timeline.at(Instant(0), self._scrape, self._desk.decider)
        # Who comes at the very start finds the engines that were there before.
        self._crowd.expect_next()
        self._decide()

    def _do_all_of_an_instant(self) -> None:
        timeline, decider = self._timeline, self._desk.decider
        wakeup, moment = decider.next_wakeup(), timeline.next()
        assert moment is not None, "sweeps never end"
        if wakeup is not None and wakeup <= moment:
            self._now = max(self._now, wakeup)
            for _ in range(WAKES_MAX):
                self._desk.tell(TimerFired())
                self._decide()
                again = decider.next_wakeup()
                if again is None or again > self._now:
                    break
            else:
                raise AssertionError("the decider wants to be woken at a moment that has passed")
        else:
            self._now = moment
        while timeline.next() == self._now:
            timeline.do_next()
            self._decide()
        changed, self._to_ask = self._to_ask, {}
        for endpoint in changed.values():
            due = endpoint.engine.next_instant()
            if due is not None and due != endpoint.due:
                timeline.at(due, self._wake, endpoint, rank=endpoint.rank)
            endpoint.due = due

    # ------------------------------------------------------------------------------------------------------ decisions

    def _decide(self) -> None:
        self._desk.decide(self._now)

    def _tell(self, event: Event) -> None:
        if self._delays is None:
            self._desk.tell(event)
        else:
            self._delays.decide(event, self._now)

    def _tell_from_caller(self, event: Event) -> None:
        assert self._delays is not None
        self._delays.from_caller(event, self._now)

    def _perform(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._dispatch(command)
            case Abort():
                self._abort(command)
            case End():
                self._crowd.end(command, self._now)
            case Hold() | Eject() | Readmit() | BudgetCrossed():
                pass

    def _dispatch(self, dispatch: Dispatch) -> None:
        endpoint = self._endpoints[dispatch.endpoint_id]
        caller = self._crowd.caller(dispatch.request_id)
        assert caller is not None, f"{dispatch.request_id} was sent after its end"
        self._crowd.sent(caller)
        attempt = OpenAttempt(dispatch, caller, self._now)
        if not endpoint.up:
            self._end_attempt(attempt, AttemptEnding.FAILED, _REFUSED)
        elif endpoint.fails(self._now):
            self._end_attempt(attempt, AttemptEnding.FAILED, _ERROR)
        elif not endpoint.fits(attempt):
            self._end_attempt(attempt, AttemptEnding.REFUSED, "the prompt and its answer are longer than the context")
        else:
            endpoint.take(attempt, self._now)
            self._to_ask[dispatch.endpoint_id] = endpoint

    def _abort(self, abort: Abort) -> None:
        endpoint = self._endpoints[abort.endpoint_id]
        self._advance(endpoint)
        attempt = endpoint.attempts.get(engine_id(abort))
        if attempt is not None:
            self._stop(endpoint, attempt, AttemptEnding.ABORTED, abort.reason)

    def _stop(
        self, endpoint: VirtualEndpoint, attempt: OpenAttempt, ending: AttemptEnding, why: str, *, crashes: bool = False
    ) -> None:
        endpoint.release(attempt, self._now, crashes=crashes)
        self._to_ask[endpoint.spec.id] = endpoint
        self._end_attempt(attempt, ending, why)

    def _break_off(self, endpoint: VirtualEndpoint, attempt: OpenAttempt) -> None:
        self._stop(endpoint, attempt, AttemptEnding.FAILED, _BROKEN, crashes=True)

    def _end_attempt(
        self, attempt: OpenAttempt, ending: AttemptEnding, detail: str = "", usage: Usage | None = None
    ) -> None:
        if self._is_asked(attempt):
            self._crowd.came_back(attempt.caller)
        dispatch, fault = attempt.dispatch, _fault(attempt, detail)
        self._tell(AttemptEnded(dispatch.request_id, dispatch.attempt, ending, detail, usage, fault))

    # ------------------------------------------------------------------------------------------------- what engines do

    def _wake(self, endpoint: VirtualEndpoint) -> None:
        # Other moments were set for it while something else was to happen next.
        if endpoint.due == self._now:
            self._advance(endpoint)

    def _advance(self, endpoint: VirtualEndpoint) -> None:
        """Brings an engine to this instant."""
        self._to_ask[endpoint.spec.id] = endpoint
        for happening in endpoint.engine.advance(self._now):
            match happening:
                case sequence.FirstToken(name):
                    attempt = endpoint.attempts[name]
                    if attempt.stream and not attempt.outspoken:
                        self._hear(self._begin, attempt)
                case sequence.Finished(name):
                    self._hear(self._finish, (endpoint.attempts.pop(name), happening))
                case _:
                    pass

    def _hear(self, hear: Callable[[_Subject], None], subject: _Subject) -> None:
        if self._delays is None:
            hear(subject)
        else:
            self._delays.from_engine(hear, subject, self._now)

    def _is_asked(self, attempt: OpenAttempt) -> bool:
        """Whether its caller still waits for it; where there are no ways, whoever does not has stopped it."""
        return self._delays is None or attempt.caller.asks == attempt.dispatch.request_id

    def _begin(self, attempt: OpenAttempt) -> None:
        # On a long way it may have ended, or another attempt may have answered, before this is heard.
        if attempt.first_seen or attempt.outspoken or attempt.over or not self._is_asked(attempt):
            return
        attempt.first_seen = True
        attempt.heard_at = self._now
        self._crowd.began(attempt.caller, self._now)
        self._tell(FirstToken(attempt.dispatch.request_id, attempt.dispatch.attempt))

    def _finish(self, ended: tuple[OpenAttempt, sequence.Finished]) -> None:
        attempt, finished = ended
        if attempt.outspoken:
            attempt.close(finished.spent, finished.output_tokens)
            self._end_attempt(attempt, AttemptEnding.ABORTED, "another attempt was the first to answer")
            return
        if not attempt.first_seen:
            self._begin(attempt)
        attempt.close(finished.spent, finished.output_tokens)
        usage = Usage(finished.prompt_tokens, finished.output_tokens, finished.cached_tokens, UsageSource.ENGINE)
        self._end_attempt(attempt, AttemptEnding.COMPLETED, usage=usage)

    # ------------------------------------------------------------------------------------------- what the gateway does

    def _sweep(self, every: Duration) -> None:
        """Reports what streams have produced, and stops those that have been silent for too long."""
        self._timeline.at(after(self._now, every), self._sweep, every)
        progress: list[AttemptProgress] = []
        for endpoint in self._endpoints.values():
            if endpoint.attempts:
                self._advance(endpoint)
                self._decide()
                self._look_at(endpoint, progress)
        if progress:
            self._tell(Progressed(tuple(progress)))

    def _look_at(self, endpoint: VirtualEndpoint, progress: list[AttemptProgress]) -> None:
        now, attempts = self._now, endpoint.attempts
        for name, tokens in endpoint.engine.produced():
            attempt = attempts.get(name)
            if attempt is not None and tokens > attempt.reported:
                if attempt.stream and not attempt.first_seen:
                    continue
                if attempt.stream:
                    dispatch = attempt.dispatch
                    progress.append(AttemptProgress(dispatch.request_id, dispatch.attempt, tokens - attempt.reported))
                attempt.reported, attempt.heard_at = tokens, now
        for attempt in tuple(attempts.values()):
            if why := _overdue(attempt, now):
                self._stop(endpoint, attempt, AttemptEnding.SILENT, why)

    def _join(self, endpoint: VirtualEndpoint) -> None:
        spec = endpoint.spec
        self._desk.tell(EndpointJoined(Endpoint(spec.id, spec.pool, spec.in_flight_max)))
        if spec.cold_start_ns:
            self._timeline.at(after(self._now, spec.cold_start_ns), self._disturbances.come_up, endpoint)
        else:
            self._disturbances.come_up(endpoint)
        self._look_for(endpoint)
        self._timeline.at(after(self._now, self._scenario.probe_every_ns), self._read_metrics, endpoint)

    def _look_for(self, endpoint: VirtualEndpoint) -> None:
        """Looks whether an engine that is starting answers."""
        if endpoint.up:
            self._desk.tell(EndpointReadied(endpoint.spec.id))
        else:
            endpoint.pause_ns = min(2 * endpoint.pause_ns or FIRST_PAUSE_NS, self._scenario.probe_every_ns)
            self._timeline.at(Instant(self._now + endpoint.pause_ns), self._look_for, endpoint)

    def _read_metrics(self, endpoint: VirtualEndpoint) -> None:
        """What its engine says of its load; nothing where it is not up."""
        self._timeline.at(after(self._now, self._scenario.probe_every_ns), self._read_metrics, endpoint)
        if endpoint.up:
            self._advance(endpoint)
            state = endpoint.engine.state()
            kv_percent = round(100 * state.kv_used_fraction)
            self._desk.tell(EndpointMeasured(endpoint.spec.id, state.running, state.waiting, kv_percent))

    def _scrape(self, decider: Scraper) -> None:
        self._timeline.at(after(self._now, self._scenario.scrape_every_ns), self._scrape, decider)
        for endpoint in self._endpoints.values():
            if endpoint.up:
                self._advance(endpoint)
                self._decide()
                decider.scraped(endpoint.spec.id, endpoint.engine.state(), self._now)
        self._desk.tell(TimerFired())

    def _sample(self, _: None) -> None:
        """Only looks: all that this instant brings has been done."""
        for endpoint in self._endpoints.values():
            told = endpoint.engine.advance(self._now)
            assert all(isinstance(each, sequence.Preempted) for each in told), "an engine was not asked in time"
        endpoints = tuple(each.sample() for each in self._endpoints.values())
        self._audience.sampled(Sample(self._now, dict(self._crowd.queued), endpoints))
        if self._progress is not None:
            self._progress(self._now, self._crowd.gone)
        self._timeline.at(after(self._now, self._until_sample()), self._sample, None, rank=LOOKS)

    def _until_sample(self) -> Duration:
        """Even distances as long as requests arrive, then ever greater ones."""
        return Duration(max(MILLISECOND, self._scenario.span_ns // self._samples, self._now // self._samples))


def _fault(attempt: OpenAttempt, detail: str) -> Fault | None:
    is_limit = detail.startswith(_INCOMPLETE) and (attempt.first_seen or not attempt.stream)
    return Fault.LIMIT if is_limit else _FAULTS.get(detail)


def _overdue(attempt: OpenAttempt, now: Instant) -> str:
    """Which of its limits an attempt has passed, if any."""
    dispatch = attempt.dispatch
    if now - attempt.started_at > dispatch.total_ns_max:
        return f"{_INCOMPLETE} {seconds(dispatch.total_ns_max)}"
    if not attempt.stream:
        return ""
    silent_ns = now - attempt.heard_at
    if attempt.first_seen and silent_ns > dispatch.idle_ns_max:
        return f"no token for {seconds(dispatch.idle_ns_max)}"
    if not attempt.first_seen and silent_ns > dispatch.first_token_ns_max:
        return f"no first token within {seconds(dispatch.first_token_ns_max)}"
    return ""
