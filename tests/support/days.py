"""What might happen on a long day, with trouble in it?

A seed makes events that react to what the scheduler orders, as a host would: attempts begin, go on and end in many
ways, endpoints come and go, fail and hang, the policy changes, clients leave, are in a hurry or say a thing twice. The
large world has many of everything; in the small one the same few meet in all possible ways.
"""

from dataclasses import dataclass, field
from random import Random

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    Event,
    Progressed,
    RequestArrived,
    TimerFired,
)
from headgate.model.caps import Caps
from headgate.model.policy import HealthRules, Policy, RetryRules
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, RequestId, after
from tests.support.builders import (
    a_class,
    a_model,
    a_policy,
    a_tenant,
    arrived,
    at,
    client_left,
    first_token,
    grace_over,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    unreadied,
)


@dataclass(frozen=True)
class World:
    endpoints: dict[str, str]
    """Each with its pool."""
    tenants: tuple[str, ...]
    models: tuple[str, ...]
    classes: tuple[str | None, ...]
    """What callers name; the more often it stands here, the more often they do."""
    policies: tuple[Policy, ...]
    """The first is the one it begins with; any may follow."""
    steps_ms: tuple[int, ...]
    """How much time passes between two events."""
    churn: float
    """The share of events that are about endpoints coming, going and restarting."""
    failing: float
    """The share of attempts that fail wherever they are."""


@dataclass
class Day:
    """A host that invents what happens. Everything it chooses from is in an order that the events made."""

    world: World
    chance: Random
    now: Instant = at(0)
    arrivals: int = 0
    unended: dict[str, None] = field(default_factory=dict)
    open: list[Dispatch] = field(default_factory=list)
    aborted: dict[tuple[str, int], None] = field(default_factory=dict)
    past: list[Dispatch] = field(default_factory=list)

    def opening(self) -> list[Event]:
        """The policy, and every endpoint ready."""
        events: list[Event] = [policy_changed(self.world.policies[0], "h0")]
        for name, pool in self.world.endpoints.items():
            events += [joined(name, pool=pool, places=2), readied(name)]
        return events

    def next(self, wakeup: Instant | None) -> tuple[Event, Instant]:
        step = Duration(self.chance.choice(self.world.steps_ms) * MILLISECOND)
        # Now and then a busy host rings late, and something else happens first.
        if wakeup is not None and wakeup <= after(self.now, step) and self.chance.random() < 0.9:
            self.now = max(self.now, wakeup)
            return TimerFired(), self.now
        self.now = after(self.now, step)
        return self._something(), self.now

    def obey(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, RequestArrived):
            self.unended[event.ticket.request_id] = None
        for command in commands:
            if isinstance(command, Dispatch):
                self.open.append(command)
            elif isinstance(command, Abort):
                self.aborted[command.request_id, command.attempt] = None
            elif isinstance(command, End):
                del self.unended[command.request_id]

    def _something(self) -> Event:
        if self.chance.random() < self.world.churn:
            return self._fleet()
        kind = self.chance.random()
        talking = [each for each in self.open if not self._hung(each)]
        if kind < 0.47 or not talking:
            return self._arrival()
        if kind < 0.56:
            attempt = self.chance.choice(self.open)
            return first_token(attempt.request_id, attempt.attempt)
        if kind < 0.61:
            chosen = self.chance.sample(talking, min(5, len(talking)))
            return Progressed(tuple(AttemptProgress(each.request_id, each.attempt, 9) for each in chosen))
        if kind < 0.9:
            return self._ending(self.chance.choice(talking))
        if kind < 0.96 and self.unended:
            name = self.chance.choice(list(self.unended))
            return client_left(name) if self.chance.random() < 0.8 else grace_over(name)
        if kind < 0.99 and self.past:
            late = self.chance.choice(self.past)
            return AttemptEnded(late.request_id, late.attempt, AttemptEnding.FAILED, "said twice")
        return policy_changed(self.chance.choice(self.world.policies), f"h{self.arrivals}")

    def _arrival(self) -> Event:
        self.arrivals += 1
        prompt_bytes = self.chance.choice((100, 3_000, 90_000))
        return arrived(
            f"r{self.arrivals}",
            self.chance.choice(self.world.tenants[: self.chance.choice((2, 10, 40))]),
            service_class=self.chance.choice(self.world.classes),
            tier=self.chance.choice((None, None, "flex", "auto")),
            model=self.chance.choice(self.world.models),
            stream=self.chance.random() < 0.8,
            prompt_bytes=prompt_bytes,
            prompt_bytes_kept=round(prompt_bytes * self.chance.random()),
            client_retries=int(self.chance.random() < 0.05),
            first_token_within=self._allowance(),
            complete_within=self._allowance(),
            key=self.chance.choice(("k1", "k2", "k3")) if self.chance.random() < 0.1 else None,
        )

    def _allowance(self) -> float | None:
        """Most callers set no deadline; a few have missed it before they arrive."""
        return self.chance.choice((0, 0.2, 1, 3, 5, 8)) if self.chance.random() < 0.1 else None

    def _hung(self, attempt: Dispatch) -> bool:
        """Some endpoints stop in the middle of their answers for half a minute, until they are told to."""
        hangs = attempt.endpoint_id.endswith("-3") and self.now // (30 * SECOND) % 2 == 0
        return hangs and (attempt.request_id, attempt.attempt) not in self.aborted

    def _ending(self, attempt: Dispatch) -> Event:
        self.open.remove(attempt)
        self.past = [*self.past[-50:], attempt]
        bad = attempt.endpoint_id.endswith("-2") and self.now // (20 * SECOND) % 2
        if (attempt.request_id, attempt.attempt) in self.aborted:
            del self.aborted[attempt.request_id, attempt.attempt]
            ending = AttemptEnding.ABORTED
        elif bad or self.chance.random() < self.world.failing:
            ending = self.chance.choice((AttemptEnding.FAILED, AttemptEnding.SILENT, AttemptEnding.REFUSED))
        else:
            ending = AttemptEnding.COMPLETED
        return AttemptEnded(RequestId(attempt.request_id), attempt.attempt, ending, "as it happened")

    def _fleet(self) -> Event:
        name = self.chance.choice(list(self.world.endpoints))
        kind = self.chance.random()
        if kind < 0.4:
            return joined(name, pool=self.world.endpoints[name], places=self.chance.choice((1, 1, 2)))
        return (readied if kind < 0.8 else unreadied if kind < 0.9 else leaving)(name)


# A large world

_TENANTS = tuple(f"tenant-{number}" for number in range(40))
_POOLS = ("large", "small", "spare")
_CLASSES = (
    a_class("interactive", queue_wait=4, queue_length_max=30, prompt_tokens_max=1_000),
    a_class("code", queue_wait=6, pools=("large",), unnamed=False),
    a_class(
        "long", band=1, queue_wait=15, pools=("large", "spare"), caps=Caps(prompt_tokens=18_000, trims_prompt=True)
    ),
    a_class("batch", band=2, queue_wait=60, service_tiers=("flex",), unnamed=False),
)
_MODELS = (a_model("m", "large", "small"), a_model("n", "small", "spare"), a_model("o", *_POOLS))
_HEALTH = HealthRules(failures_max=2, stall_ns_max=lasting(5), eject_ns=lasting(2), eject_ns_max=lasting(20))
_WHOLE = a_policy(classes=_CLASSES, tenants=_TENANTS, pools=_POOLS, models=_MODELS, health=_HEALTH)
_FEWER_CLASSES = a_policy(classes=_CLASSES[::2], tenants=_TENANTS, pools=_POOLS, models=_MODELS, health=_HEALTH)
_FEWER_TENANTS = a_policy(
    classes=_CLASSES,
    tenants=(*_TENANTS[5:30], a_tenant("tenant-0", models=("m",))),
    pools=_POOLS[:2],
    models=(a_model("m", "small"), a_model("o", "large", "small")),
    health=_HEALTH,
)

LARGE = World(
    endpoints={f"{pool}-{number}": pool for pool in _POOLS for number in range(4)},
    tenants=_TENANTS,
    models=tuple("mmmnno"),
    classes=(*[None] * 20, *["interactive"] * 4, *["code"] * 4, "nonsense"),
    policies=(*[_WHOLE] * 6, _FEWER_CLASSES, _FEWER_TENANTS),
    steps_ms=(0, 1, 5, 10, 30),
    churn=0.02,
    failing=0.15,
)

# A small world

_EITHER = a_class("either", band=1, queue_wait=5, queue_length_max=6)
_ONLY_P = a_class("only p", queue_wait=3, pools=("p",), caps=Caps(prompt_tokens=1_000))
_ONLY_Q = a_class("only q", queue_wait=3, pools=("q",), queue_length_per_tenant_max=2)


def _small(*, either_pools: tuple[str, ...] = ("p", "q"), stall: float = 2, fails: int = 2) -> Policy:
    return a_policy(
        classes=(_EITHER, _ONLY_P, _ONLY_Q),
        tenants=("acme", "bolt"),
        pools=("p", "q"),
        models=(a_model("m", *either_pools), a_model("n", *reversed(either_pools)), a_model("o", "p")),
        retry=RetryRules(credit_per_first_attempt=50, pool_extra_min=2),
        health=HealthRules(
            failures_max=fails, stall_ns_max=lasting(stall), eject_ns=lasting(0.5), eject_ns_max=lasting(2)
        ),
    )


SMALL = World(
    endpoints={"p-0": "p", "q-0": "q"},
    tenants=("acme", "bolt"),
    models=("m", "n", "o"),
    classes=("either", "either", "only p", "only q"),
    policies=(*[_small()] * 3, _small(either_pools=("q",)), _small(stall=0.5, fails=1)),
    steps_ms=(0, 0, 10, 100, 200),
    churn=0.12,
    failing=0.4,
)
