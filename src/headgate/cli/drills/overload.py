"""Drill `overload`: adds traffic of a tenant of its own, and checks whether the other classes' promises hold.

The traffic ends with this command. The gateway also limits it by itself: a throttle on the drill's tenant, which
expires, lets no more requests through than the drill means to send.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

from headgate.cli.drills.drill_result import DrillResult, objective_verdicts, recovery_text
from headgate.cli.drills.drill_run import RECOVERY_WINDOW_S, DrillRefused, DrillRun
from headgate.cli.drills.figures import (
    LOAD,
    REQUESTS,
    TENANT_REQUESTS,
    TOKENS,
    DrillObjective,
    PhaseFigures,
    objectives_of,
)
from headgate.cli.drills.fleet import DrillSample
from headgate.cli.drills.override_act import OverrideAct
from headgate.cli.drills.preflight import watch_before
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.telemetry.meters import nearest_known_tenant

NAME = "overload"
if TYPE_CHECKING:
    from headgate.loadtest.load_test import LoadTest

RATE_MAX: Final = 1_000.0
"""Maximum rate of the added requests, per second."""
_JUDGED_MIN: Final = 10
"""Minimum number of judged requests in the window before the drill ends early."""
_DRAIN_S_MAX: Final = 60.0
"""Maximum time after the last arrival in which the drill's open requests may end."""
_COUNTED_S_MAX: Final = 3.0
"""Maximum time after the drill's first request has ended until a watched gateway has counted it."""
_BURST_FACTOR: Final = 2
"""Factor by which the throttle exceeds the mean rate, because arrivals are random and rejected requests are retried."""
_TOKENS_WITHOUT_TRAFFIC: Final = (500, 100)


@dataclass(slots=True)
class SentTraffic:
    """The drill's own requests, as their client saw them."""

    finished: int = 0
    completed: int = 0
    codes: Counter[str] = field(default_factory=Counter[str])
    """Requests that did not complete, by error code or outcome."""
    refusals: int = 0
    retry_afters: int = 0
    retried: int = 0
    """Requests that were rejected, and sent again after the time in `Retry-After`."""
    admitted_on_retry: int = 0

    def add(self, request: LoadTestRequest) -> None:
        self.finished += 1
        self.refusals += request.refusals
        self.retry_afters += request.retry_afters
        completed = request.outcome is LoadTestOutcome.COMPLETED
        self.completed += completed
        if not completed:
            self.codes[request.code or request.outcome.value] += 1
        if request.retries:
            self.retried += 1
            self.admitted_on_retry += completed


@dataclass(frozen=True, slots=True)
class AddedLoad:
    """The traffic that a drill adds."""

    rate: float
    duration_s: float
    prompt_tokens: int
    output_tokens: int


class LoadSender(Protocol):
    def __call__(self, load: AddedLoad, on_request: Callable[[LoadTestRequest], None]) -> "RunningLoad": ...


class RunningLoad(Protocol):
    def stop(self) -> None: ...

    async def ended(self) -> None:
        """Waits until the last request has ended."""
        ...

    def is_over(self) -> bool: ...

    def problem(self) -> str | None:
        """Returns why the traffic ended before its time. None if it did not."""
        ...


@dataclass(frozen=True, slots=True)
class OverloadDrill:
    tenant: str
    service_class: str
    load: float
    """Total load after the addition, relative to the present or to the capacity."""
    of_capacity: bool
    abort_below: float
    """Share of good requests of a real class below which the drill ends early."""
    before_s: int
    for_s: int
    after_s: int
    force: bool
    send: LoadSender

    def describe(self, sample: DrillSample) -> str:
        self._judged(sample)
        base = "the fleet's capacity" if self.of_capacity else "the present load"
        return (
            f'would watch for {self.before_s} s, throttle tenant "{self.tenant}" to at most the rate of the drill, '
            f'send requests of class "{self.service_class}" with its key for {self.for_s} s, so that the total is '
            f"{self.load:g} times {base}, stop early if an objective of another class falls below "
            f"{self.abort_below:.0%}, end the throttle, and watch for {self.after_s} s"
        )

    def _judged(self, sample: DrillSample) -> tuple[list[DrillObjective], list[str]]:
        """Returns the objectives to judge, and why the others are not. Raises `DrillRefused` if there are none."""
        known = objectives_of(sample.gauges)
        judged = [each for each in known if each.service_class != self.service_class]
        if not judged:
            raise DrillRefused(
                f'no class other than "{self.service_class}" has objectives, so nothing could be judged; set '
                "classes.NAME.objectives, or choose another --class"
            )
        return judged, [f"{each.label}: includes the drill's own requests" for each in known if each not in judged]

    def added(self, before: PhaseFigures, sample: DrillSample) -> AddedLoad:
        """Returns the traffic to add. Raises `DrillRefused`."""
        others = before.requests
        if not others:
            raise DrillRefused(
                "no requests ended before the drill, so there is no present load to multiply; send traffic first, or "
                "use a longer --before"
            )
        if not self.force and (own := round(before.total(TENANT_REQUESTS, first=self.tenant))):
            raise DrillRefused(
                f'tenant "{self.tenant}" has sent {own} requests already; the throttle would limit them: use a tenant '
                "and a key only for drills"
            )
        rate = self._total_rate(before, sample) - before.per_second
        if rate <= 0:
            base = "the capacity" if self.of_capacity else "the present load"
            raise DrillRefused(f"{self.load:g} times {base} is no more than the present load; raise --load")
        if rate > RATE_MAX:
            raise DrillRefused(
                f"the drill would add {rate:.0f} requests/s, and {RATE_MAX:g} is the limit; lower --load"
            )
        completed = sum(
            value
            for (metric, _, outcome), value in before.increase.items()
            if (metric, outcome) == (REQUESTS, "completed")
        )
        prompt, output = _TOKENS_WITHOUT_TRAFFIC
        if completed:
            prompt = max(1, round(before.total(TOKENS, second="prompt") / completed)) or prompt
            output = max(1, round(before.total(TOKENS, second="output") / completed)) or output
        return AddedLoad(round(rate, 3), self.for_s, prompt, output)

    def _total_rate(self, before: PhaseFigures, sample: DrillSample) -> float:
        if not self.of_capacity:
            return self.load * before.per_second
        ratios = [value for (metric, _, _), value in sample.gauges.items() if metric == LOAD and value > 0]
        if not ratios:
            raise DrillRefused("the gateway has not measured the load of its pools yet; use --of present")
        return self.load * before.per_second / max(ratios)

    def act(self, run: DrillRun, added: AddedLoad) -> OverrideAct:
        per_minute = ceil(60 * _BURST_FACTOR * added.rate)
        duration_s = self.for_s + round(_DRAIN_S_MAX)
        return OverrideAct(run, NAME, "throttle", self.tenant, duration_s, requests_per_minute=per_minute)

    async def perform(self, run: DrillRun) -> DrillResult:
        await watch_before(run, self.before_s, force=self.force)
        judged, excluded = self._judged(run.last)
        added = self.added(run.phases()["before"], run.last)
        sent, act = SentTraffic(), self.act(run, added)
        await act.place()
        try:
            if not run.stopped:
                await self._add_traffic(run, judged, act, added, sent)
        finally:
            await act.undo()
        await run.watch("after", self.after_s)
        if not run.stopped and self._is_uncounted(run, sent):
            run.end_early(self._uncounted(sent))
        verdicts = objective_verdicts(judged, run.since_act())
        facts = {"recovered after": recovery_text(run, judged), **_facts(added, sent), "undo": act.undone}
        return DrillResult(
            NAME, f"class {self.service_class}", verdicts, run, act.undone, facts, excluded, in_force=act.in_force
        )

    async def _add_traffic(
        self, run: DrillRun, judged: Sequence[DrillObjective], act: OverrideAct, added: AddedLoad, sent: SentTraffic
    ) -> None:
        sizes = f"{added.prompt_tokens} prompt and {added.output_tokens} output tokens"
        run.note(f"adding {added.rate:g} requests/s with {sizes}")
        sending = self.send(added, sent.add)
        try:
            await self._watch(run, judged, act, sending, sent)
            # A client that gave up on its open requests would look like an incident of its own.
            await run.watch("draining", _DRAIN_S_MAX, until=lambda _: sending.is_over())
        finally:
            sending.stop()
            await sending.ended()

    async def _watch(
        self,
        run: DrillRun,
        judged: Sequence[DrillObjective],
        act: OverrideAct,
        sending: RunningLoad,
        sent: SentTraffic,
    ) -> None:
        uncounted_since_s: float | None = None

        def until(sample: DrillSample) -> bool:
            nonlocal uncounted_since_s
            if not self._is_uncounted(run, sent):
                uncounted_since_s = None
            elif uncounted_since_s is None:
                uncounted_since_s = sample.at_s
            elif sample.at_s - uncounted_since_s >= _COUNTED_S_MAX:
                run.end_early(self._uncounted(sent))
            if (problem := sending.problem()) is not None:
                run.end_early(problem)
            return run.stopped or self._violated(run, judged)

        await act.watch("during", self.for_s, until=until)

    def _is_uncounted(self, run: DrillRun, sent: SentTraffic) -> bool:
        """Whether requests of the drill have ended, but no watched gateway has counted any.

        A tenant without metrics of its own is counted under another name, so this looks at all requests of that name.
        """
        known = {tenant for metric, tenant, _ in run.last.totals if metric == TENANT_REQUESTS}
        label = self.tenant if self.tenant in known else nearest_known_tenant(self.tenant, known)
        return sent.finished > 0 and not run.since_act().total(TENANT_REQUESTS, first=label)

    def _uncounted(self, sent: SentTraffic) -> str:
        return (
            f'{sent.finished} requests of the drill have ended, but the watched gateways have counted none of tenant "'
            f'{self.tenant}"; check that --target is one of these gateways, and that the key belongs to this tenant'
        )

    def _violated(self, run: DrillRun, judged: Sequence[DrillObjective]) -> bool:
        """Ends the drill if an objective is below the bound in the last window since the act."""
        assert run.acted_at_s is not None, "the drill has acted"
        if run.fleet.now_s() - run.last.at_s > 2.0:
            run.end_early("the gateway stopped responding")
            return True
        window = run.figures(max(run.acted_at_s, run.last.at_s - RECOVERY_WINDOW_S), run.last.at_s)
        for each in judged:
            share = window.attained(each)
            if share is not None and window.judged(each) >= _JUDGED_MIN and share < self.abort_below:
                run.end_early(f"{each.label} fell to {share:.1%}, below --abort-below {self.abort_below:.0%}")
                return True
        return False


def _facts(added: AddedLoad, sent: SentTraffic) -> dict[str, object]:
    return {
        "added (requests/s)": added.rate,
        "sent": sent.finished,
        "completed": sent.completed,
        "not completed": dict(sent.codes),
        "rejections with Retry-After": f"{sent.retry_afters} of {sent.refusals}",
        "completed on retry": f"{sent.admitted_on_retry} of {sent.retried}",
    }


class LoadTestTraffic:
    """Sends the drill's requests with the load generator."""

    def __init__(self, url: str, model: str, *, service_class: str, tenant: str, key: str | None, seed: int) -> None:
        self._url = url
        self._model = model
        self._service_class = service_class
        self._tenant = tenant
        self._key = key
        self._seed = seed

    def __call__(self, load: AddedLoad, on_request: Callable[[LoadTestRequest], None]) -> "_RunningLoadTest":
        from headgate.loadtest.load_test import LoadTest, LoadTestPlan
        from headgate.loadtest.schedule import poisson
        from headgate.loadtest.senders import Sender, SenderTable, TokenRange
        from headgate.loadtest.target import TargetUrl

        sender = Sender(
            TokenRange(load.prompt_tokens, load.prompt_tokens),
            TokenRange(load.output_tokens, load.output_tokens),
            service_class=self._service_class,
            tenant=self._tenant,
            key=self._key,
        )
        table = SenderTable([sender])
        plan = LoadTestPlan(
            target=TargetUrl.parse(self._url),
            model=self._model,
            schedule=poisson(table, rate=load.rate, duration_s=load.duration_s, seed=self._seed),
            senders=tuple(table.senders),
            seed=self._seed,
            exact_output=True,
            retries_max=1,
            drain_s=_DRAIN_S_MAX,
        )
        return _RunningLoadTest(LoadTest(plan, on_request=on_request))


class _RunningLoadTest:
    def __init__(self, test: "LoadTest") -> None:
        self._test = test
        self._task = asyncio.create_task(test.run())

    def stop(self) -> None:
        self._test.stop()

    async def ended(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    def is_over(self) -> bool:
        return self._task.done()

    def problem(self) -> str | None:
        error = self._task.exception() if self._task.done() and not self._task.cancelled() else None
        return None if error is None else f"the drill's traffic ended: {error}"
