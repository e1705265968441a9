"""Virtual host: runs the scheduler against simulated engines and clients in virtual time.

It is the simulated counterpart of `hosts/local/host.py` and passes the same events to the same decider. Time jumps from
one event to the next. Within an instant, all due actions and their consequences are completed first. Only then does the
host ask the engines for their next instants, because a step includes everything that has arrived by the time it starts.

The host also imitates the rest of a gateway:

- Periodic sweeps check attempt timeouts and report progress.
- A starting engine is probed at increasing intervals until it responds.
- A crashing engine breaks its connections immediately. The crash itself is not reported, so the scheduler learns of it
  only from failed attempts.

Gateway and network latency are not simulated, unless the scenario sets `link_latencies`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from headgate.core.commands import Abort, BudgetCrossed, Command, Dispatch, Eject, End, Hold, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    Event,
    FirstToken,
    PolicyChanged,
    TimerFired,
)
from headgate.model.fault import Fault
from headgate.model.units import MILLISECOND, MINUTE, Duration, EndpointId, Instant, after, format_seconds
from headgate.model.usage import Usage, UsageSource
from headgate.ports.observer import Observer
from headgate.simulation.engine import sequence
from headgate.simulation.virtual.autoscaling import SimulatedAutoscaler
from headgate.simulation.virtual.callers import SimulatedCallers
from headgate.simulation.virtual.decision_loop import DecisionLoop
from headgate.simulation.virtual.endpoint import SimulatedAttempt, VirtualEndpoint, engine_request_id
from headgate.simulation.virtual.fault_injection import FaultInjector
from headgate.simulation.virtual.fleet import SimulatedFleet
from headgate.simulation.virtual.link_latencies import DelayedDelivery
from headgate.simulation.virtual.run_observer import FleetSample, RunObserver, RunSummary
from headgate.simulation.virtual.scenario import Scenario, ScrapeReceiver, Summarizer
from headgate.simulation.virtual.timeline import SAMPLE_RANK, Timeline

_Subject = TypeVar("_Subject")

DRAIN_NS_MAX = Duration(30 * 24 * 60 * MINUTE)
"""Time after the last arrival by which all requests must have ended. A request that is still open after that indicates
a hang.
"""
WAKEUPS_MAX = 3
"""Maximum number of consecutive timer events at one instant.

A request returned by a stalled endpoint may already be overdue.
"""

_REFUSED: Final = "connection refused"
_ERROR: Final = "the engine returned 500"
_BROKEN: Final = "the connection was lost"
_INCOMPLETE: Final = "not complete within"
_FAULTS: Final = {_REFUSED: Fault.CONNECTION, _ERROR: Fault.RESPONSE, _BROKEN: Fault.CONNECTION}


class VirtualHost:
    def __init__(
        self, scenario: Scenario, run_observer: RunObserver, *, observers: Sequence[Observer] = (), samples: int = 600
    ) -> None:
        self._scenario = scenario
        self._run_observer = run_observer
        self._decisions = DecisionLoop(scenario.decider(), self._perform, observers)
        self._timeline = Timeline()
        ways = scenario.link_latencies
        self._delays = None if ways is None else DelayedDelivery(ways, self._timeline, self._decisions.submit)
        self._now = Instant(0)
        self._endpoints = _endpoints(scenario)
        self._fleet = SimulatedFleet(
            self._timeline,
            now=lambda: self._now,
            emit=self._decisions.submit,
            advance=self._advance,
            probe_interval_ns=scenario.probe_interval_ns,
        )
        self._autoscaler = self._attached_autoscaler() if scenario.scaling else None
        self._changed: dict[EndpointId, VirtualEndpoint] = {}
        """Ordered set of endpoints whose next instants must be queried again at the end of this instant."""
        self._callers = SimulatedCallers(
            scenario.arrivals(),
            self._timeline,
            callers=scenario.callers,
            model=scenario.model,
            models=[each.name for each in scenario.policy.models],
            seed=scenario.seed,
            emit=self._decisions.submit if self._delays is None else self._emit_from_caller,
            on_request_ended=run_observer.request_ended,
        )
        self._fault_injector = FaultInjector(
            self._endpoints,
            self._timeline,
            now=lambda: self._now,
            emit=self._decisions.submit,
            advance=self._advance,
            fail_attempt=self._break_connection,
            restart=self._fleet.finish_start,
        )
        self._samples = samples
        self._progress: Callable[[Instant, int], None] | None = None

    def _attached_autoscaler(self) -> SimulatedAutoscaler:
        decider = self._decisions.decider
        assert isinstance(decider, Summarizer), "the autoscaler needs the scheduler's summary"
        autoscaler = SimulatedAutoscaler(
            self._scenario.scaling,
            self._endpoints.values(),
            self._fleet,
            self._timeline,
            summary=decider.summary,
            now=lambda: self._now,
        )
        self._decisions.attach(autoscaler)
        return autoscaler

    @property
    def lag_ns(self) -> Duration:
        """How far decisions lag behind events."""
        return Duration(0) if self._delays is None else self._delays.lag_ns(self._now)

    def run(self, progress: Callable[[Instant, int], None] | None = None) -> None:
        """Runs until the last request has ended.

        Calls `progress` with the time and the number of requests that have ended.
        """
        self._progress = progress
        self._start()
        last = after(Instant(self._scenario.span_ns), DRAIN_NS_MAX)
        while self._callers.unfinished:
            self._process_instant()
            assert self._now < last, "a request is still open a month after the last arrival"
        assert not any(each.attempts for each in self._endpoints.values()), "an attempt outlived its request"
        for endpoint in self._endpoints.values():
            endpoint.finish_step()
        accounts = tuple(each.totals(self._now) for each in self._endpoints.values())
        scaled = () if self._autoscaler is None else tuple(self._autoscaler.events)
        self._run_observer.run_ended(RunSummary(self._now, self._decisions.events, accounts, scaled))

    # ----------------------------------------------------------------------------------------------------------- time

    def _start(self) -> None:
        scenario, timeline = self._scenario, self._timeline
        self._decisions.submit(PolicyChanged(scenario.policy, f"scenario {scenario.seed}"))
        self._fleet.open(self._endpoints.values())
        if self._autoscaler is not None:
            self._autoscaler.start()
        for fault in scenario.faults:
            timeline.schedule(fault.at, self._fault_injector.inject, fault)
        for change in scenario.changes:
            timeline.schedule(change.at, self._fault_injector.apply_change, change)
        timeline.schedule(Instant(self._sample_interval()), self._sample, None, rank=SAMPLE_RANK)
        timeline.schedule(Instant(scenario.progress_interval_ns), self._sweep, scenario.progress_interval_ns)
        if isinstance(self._decisions.decider, ScrapeReceiver):
            timeline.schedule(Instant(0), self._scrape, self._decisions.decider)
        # Endpoints that exist at the start join before the first arrival.
        self._callers.schedule_next_arrival()
        self._decide()

    def _process_instant(self) -> None:
        timeline, decider = self._timeline, self._decisions.decider
        wakeup, moment = decider.next_wakeup(), timeline.next_instant()
        assert moment is not None, "the timeline must contain the next sweep"
        if wakeup is not None and wakeup <= moment:
            self._now = max(self._now, wakeup)
            for _ in range(WAKEUPS_MAX):
                self._decisions.submit(TimerFired())
                self._decide()
                again = decider.next_wakeup()
                if again is None or again > self._now:
                    break
            else:
                raise AssertionError("the decider keeps requesting a wakeup in the past")
        else:
            self._now = moment
        while timeline.next_instant() == self._now:
            timeline.run_next()
            self._decide()
        changed, self._changed = self._changed, {}
        for endpoint in changed.values():
            if endpoint.is_drained:
                endpoint.stop(self._now)
            endpoint.enter_due(self._now)
            due = endpoint.next_instant()
            if due is not None and due != endpoint.next_event_at:
                timeline.schedule(due, self._wake, endpoint, rank=endpoint.rank)
            endpoint.next_event_at = due

    # ------------------------------------------------------------------------------------------------------ decisions

    def _decide(self) -> None:
        self._decisions.run_pending(self._now)

    def _emit(self, event: Event) -> None:
        if self._delays is None:
            self._decisions.submit(event)
        else:
            self._delays.decide(event, self._now)

    def _emit_from_caller(self, event: Event) -> None:
        assert self._delays is not None
        self._delays.from_caller(event, self._now)

    def _perform(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._dispatch(command)
            case Abort():
                self._abort(command)
            case End():
                self._callers.on_end(command, self._now)
            case Hold() | Eject() | Readmit() | BudgetCrossed():
                pass

    def _dispatch(self, dispatch: Dispatch) -> None:
        endpoint = self._endpoints[dispatch.endpoint_id]
        caller = self._callers.caller(dispatch.request_id)
        assert caller is not None, f"{dispatch.request_id} was dispatched after its end"
        self._callers.on_dispatched(caller, dispatch)
        attempt = SimulatedAttempt(dispatch, caller, self._now)
        if not endpoint.up:
            self._end_attempt(attempt, AttemptEnding.FAILED, _REFUSED)
        elif endpoint.draws_error(self._now):
            self._end_attempt(attempt, AttemptEnding.FAILED, _ERROR)
        elif not endpoint.fits(attempt):
            self._end_attempt(attempt, AttemptEnding.REJECTED, "prompt and output exceed the context window")
        else:
            endpoint.start_attempt(attempt, self._now)
            self._changed[dispatch.endpoint_id] = endpoint

    def _abort(self, abort: Abort) -> None:
        endpoint = self._endpoints[abort.endpoint_id]
        self._advance(endpoint)
        attempt = endpoint.attempts.get(engine_request_id(abort))
        if attempt is not None:
            self._stop(endpoint, attempt, AttemptEnding.ABORTED, abort.reason)

    def _stop(
        self,
        endpoint: VirtualEndpoint,
        attempt: SimulatedAttempt,
        ending: AttemptEnding,
        why: str,
        *,
        crashes: bool = False,
    ) -> None:
        endpoint.stop_attempt(attempt, self._now, crashes=crashes)
        self._changed[endpoint.spec.id] = endpoint
        self._end_attempt(attempt, ending, why)

    def _break_connection(self, endpoint: VirtualEndpoint, attempt: SimulatedAttempt) -> None:
        self._stop(endpoint, attempt, AttemptEnding.FAILED, _BROKEN, crashes=True)

    def _end_attempt(
        self, attempt: SimulatedAttempt, ending: AttemptEnding, detail: str = "", usage: Usage | None = None
    ) -> None:
        if self._is_awaited(attempt):
            self._callers.on_attempt_ended(attempt.caller)
        dispatch, fault = attempt.dispatch, _fault(attempt, detail)
        self._emit(AttemptEnded(dispatch.request_id, dispatch.attempt, ending, detail, usage, fault))

    # -------------------------------------------------------------------------------------------------- engine events

    def _wake(self, endpoint: VirtualEndpoint) -> None:
        # The endpoint's next instant may have changed since this action was scheduled.
        if endpoint.next_event_at == self._now:
            self._advance(endpoint)

    def _advance(self, endpoint: VirtualEndpoint) -> None:
        """Advances an engine to the current instant and handles its events."""
        self._changed[endpoint.spec.id] = endpoint
        for happening in endpoint.engine.advance(self._now):
            match happening:
                case sequence.FirstTokenGenerated(name):
                    attempt = endpoint.attempts[name]
                    if attempt.stream and not attempt.superseded:
                        self._deliver(self._record_first_token, attempt)
                case sequence.SequenceFinished():
                    for complete in endpoint.pop_complete(happening):
                        self._deliver(self._finish, complete)
                case _:
                    pass

    def _deliver(self, callback: Callable[[_Subject], None], subject: _Subject) -> None:
        if self._delays is None:
            callback(subject)
        else:
            self._delays.from_engine(callback, subject, self._now)

    def _is_awaited(self, attempt: SimulatedAttempt) -> bool:
        """Returns whether the client is still waiting for this attempt. Always true without link latencies."""
        return self._delays is None or attempt.caller.open_request_id == attempt.dispatch.request_id

    def _record_first_token(self, attempt: SimulatedAttempt) -> None:
        # With link latencies, the attempt may have ended, or another attempt may have responded, before this event
        # arrives.
        if attempt.first_token_seen or attempt.superseded or attempt.stopped or not self._is_awaited(attempt):
            return
        attempt.first_token_seen = True
        attempt.last_token_at = self._now
        self._callers.on_first_token(attempt.caller, self._now)
        self._emit(FirstToken(attempt.dispatch.request_id, attempt.dispatch.attempt))

    def _finish(self, ended: tuple[SimulatedAttempt, sequence.SequenceFinished]) -> None:
        attempt, finished = ended
        if attempt.superseded:
            attempt.record_work(finished.cost, finished.output_tokens, self._now)
            self._end_attempt(attempt, AttemptEnding.ABORTED, "another attempt responded first")
            return
        if not attempt.first_token_seen:
            self._record_first_token(attempt)
        attempt.record_work(finished.cost, finished.output_tokens, self._now)
        usage = Usage(finished.prompt_tokens, finished.output_tokens, finished.cached_tokens, UsageSource.ENGINE)
        self._end_attempt(attempt, AttemptEnding.COMPLETED, usage=usage)

    # ----------------------------------------------------------------------------------------------- gateway behaviour

    def _sweep(self, every: Duration) -> None:
        """Reports the progress of streams and stops attempts that have exceeded a timeout."""
        self._timeline.schedule(after(self._now, every), self._sweep, every)
        progress: list[AttemptProgress] = []
        for endpoint in self._endpoints.values():
            if endpoint.attempts:
                self._advance(endpoint)
                self._decide()
                progress += _new_progress(endpoint, self._now)
                for attempt in tuple(endpoint.attempts.values()):
                    if why := _exceeded_limit(attempt, self._now):
                        self._stop(endpoint, attempt, AttemptEnding.TIMEOUT, why)
        if progress:
            self._emit(AttemptsProgressed(tuple(progress)))

    def _scrape(self, decider: ScrapeReceiver) -> None:
        self._timeline.schedule(after(self._now, self._scenario.scrape_interval_ns), self._scrape, decider)
        for endpoint in self._endpoints.values():
            if endpoint.up:
                self._advance(endpoint)
                self._decide()
                decider.on_scrape(endpoint.spec.id, endpoint.engine.state(), self._now)
        self._decisions.submit(TimerFired())

    def _sample(self, _: None) -> None:
        """Takes a sample without side effects. All other actions at this instant have been completed."""
        for endpoint in self._endpoints.values():
            told = endpoint.engine.advance(self._now)
            assert all(isinstance(each, sequence.SequencePreempted) for each in told), "an engine event was missed"
        endpoints = tuple(each.sample() for each in self._endpoints.values())
        self._run_observer.sample_taken(FleetSample(self._now, dict(self._callers.queued), endpoints))
        if self._progress is not None:
            self._progress(self._now, self._callers.finished)
        self._timeline.schedule(after(self._now, self._sample_interval()), self._sample, None, rank=SAMPLE_RANK)

    def _sample_interval(self) -> Duration:
        """Returns the sampling interval, which is constant while requests are arriving and then increases."""
        return Duration(max(MILLISECOND, self._scenario.span_ns // self._samples, self._now // self._samples))


def _endpoints(scenario: Scenario) -> dict[EndpointId, VirtualEndpoint]:
    targets = ((each.name, each.latency_target_ns) for each in scenario.policy.classes)
    targets_ns = {name: target_ns for name, target_ns in targets if target_ns is not None}
    return {spec.id: VirtualEndpoint(spec, rank, targets_ns) for rank, spec in enumerate(scenario.engines)}


def _new_progress(endpoint: VirtualEndpoint, now: Instant) -> Iterator[AttemptProgress]:
    """Yields the tokens that each stream has received since the last call."""
    for name, tokens in endpoint.engine.generated_by_request():
        attempt = endpoint.attempts.get(name)
        if attempt is not None and tokens > attempt.reported_tokens:
            if attempt.stream and not attempt.first_token_seen:
                continue
            if attempt.stream:
                dispatch = attempt.dispatch
                yield AttemptProgress(dispatch.request_id, dispatch.attempt, tokens - attempt.reported_tokens)
            attempt.reported_tokens, attempt.last_token_at = tokens, now


def _fault(attempt: SimulatedAttempt, detail: str) -> Fault | None:
    is_limit = detail.startswith(_INCOMPLETE) and (attempt.first_token_seen or not attempt.stream)
    return Fault.TIME_LIMIT if is_limit else _FAULTS.get(detail)


def _exceeded_limit(attempt: SimulatedAttempt, now: Instant) -> str:
    """Returns the timeout that an attempt has exceeded, or an empty string."""
    dispatch = attempt.dispatch
    if now - attempt.started_at > dispatch.total_ns_max:
        return f"{_INCOMPLETE} {format_seconds(dispatch.total_ns_max)}"
    if not attempt.stream:
        return ""
    silent_ns = now - attempt.last_token_at
    if attempt.first_token_seen and silent_ns > dispatch.idle_ns_max:
        return f"no token for {format_seconds(dispatch.idle_ns_max)}"
    if not attempt.first_token_seen and silent_ns > dispatch.first_token_ns_max:
        return f"no first token within {format_seconds(dispatch.first_token_ns_max)}"
    return ""
