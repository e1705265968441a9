"""What became of one request, and of the engines meanwhile? What the virtual host tells, as it happens."""

from dataclasses import dataclass
from typing import Protocol

from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, EndpointId, Instant, PoolName, TenantId


@dataclass(slots=True)
class Story:
    """One request from its caller's first try to the end of the last. Written as it goes on, told when it is over."""

    number: int
    service_class: ClassName
    tenant: TenantId
    arrived_at: Instant
    prompt_tokens: int
    answer_tokens: int
    """How long the answer would be in full."""
    tries: int = 0
    """How often the caller asked."""
    attempts: int = 0
    """How often it was sent to an engine, over all tries."""
    waited_ns: int = 0
    """In our queue, over all tries."""
    outcome: Outcome | None = None
    """Of the last try. `CANCELLED` where the caller left."""
    first_token_at: Instant | None = None
    """Of the last try, and so of the answer that was completed if one was."""
    ended_at: Instant = Instant(0)
    output_tokens: int = 0
    """What the caller got of the last try's answer."""
    prompt_tokens_computed: int = 0
    """What engines computed of its prompts, over all attempts; less what caches held, more what was computed anew."""
    output_tokens_computed: int = 0
    """What engines generated for it, over all attempts."""
    engine_ps: int = 0
    """Its share of the engines' work in picoseconds at nominal speed, over all attempts."""


@dataclass(frozen=True, slots=True)
class EndpointSample:
    running: int
    waiting: int
    kv_used_fraction: float
    up: bool = True
    """Whether it could serve."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stand at one instant; taken at even distances."""

    at: Instant
    queued: dict[ClassName, int]
    """Waiting in the gateway, by class."""
    endpoints: tuple[EndpointSample, ...]
    """In the order of the scenario; zeros while an engine is down."""


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """One engine over the whole run, crashes included."""

    id: EndpointId
    pool: PoolName
    profile: str
    up_ns: int
    """How long it could serve."""
    worked_ps: int
    """What its steps took at nominal speed."""
    steps: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The run is over."""

    at: Instant
    events: int
    """How many the decider was told."""
    engines: tuple[EngineAccount, ...]


class Audience(Protocol):
    """Whoever wants to know what became of it all."""

    def ended(self, story: Story) -> None: ...

    def sampled(self, sample: Sample) -> None: ...

    def over(self, ending: Ending) -> None: ...
