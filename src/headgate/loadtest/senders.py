"""Senders of a load test.

A sender is one kind of client, with its class, tenant, key, share of the arrivals, and prompt and output sizes. On the
command line, it is written as `class=interactive,tenant=acme,share=0.7,key=env:ACME_KEY,prompt=200:2000`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, NamedTuple

from headgate.loadtest.options import UNNAMED, SessionShape
from headgate.loadtest.problem import WorkloadError
from headgate.model.ticket import Api
from headgate.simulation.options import CallerBehaviour

TOKENS_MAX: Final = 1_000_000
"""Maximum prompt or output size of a request."""
SENDERS_MAX: Final = 1_000
"""Maximum number of senders from a trace. Any others are reported as one sender."""

_FIELDS: Final = ("class", "tier", "tenant", "key", "share", "prompt", "output")


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Uniform distribution of token counts between two inclusive limits."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> "TokenRange":
        """Parses `200` or `200:2000`."""
        least, colon, most = text.partition(":")
        try:
            sizes = cls(int(least), int(most if colon else least))
        except ValueError:
            raise WorkloadError(f'"{text}" is not a number of tokens; use 200 or 200:2000') from None
        if not 1 <= sizes.least <= sizes.most <= TOKENS_MAX:
            raise WorkloadError(
                f'"{text}" is not a range of tokens; use two numbers from 1 to {TOKENS_MAX}, the smaller one first'
            )
        return sizes

    def draw(self, random: Random) -> int:
        return self.least if self.least == self.most else random.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Sender:
    prompt: TokenRange
    output: TokenRange
    service_class: str | None = None
    """Value of the `x-headgate-class` header."""
    tier: str | None = None
    """Value of the `service_tier` field."""
    tenant: str | None = None
    """Label for the tenant in reports. The server identifies the tenant by its key."""
    key: str | None = field(default=None, repr=False)
    share: float = 1.0
    model: str | None = None
    """Model of its requests, from a trace. None means the model of the load test."""
    stream: bool | None = None
    """Whether its requests are streaming, from a trace. None means as in the load test."""
    api: Api = Api.CHAT
    caller: CallerBehaviour | None = None
    """Targets, client timeout and retries. None means those of the plan."""
    source: int = 0
    """Number of the workload's source."""
    prefix_tokens: int = 0
    prefix_prompts: int = 1
    """Number of different prefixes. Each request starts with one of them."""
    session: SessionShape | None = None
    """Further turns after each request. None sends single requests."""

    @property
    def class_label(self) -> str:
        return self.service_class or self.tier or UNNAMED

    @property
    def tenant_label(self) -> str:
        return self.tenant or UNNAMED


def parse_sender(
    text: str, environment: Mapping[str, str], *, prompt: TokenRange, output: TokenRange, key: str | None = None
) -> Sender:
    """Parses the value of `--mix`. The other arguments are the defaults."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in _FIELDS:
            raise WorkloadError(f'--mix: "{part}" is invalid; use NAME=VALUE with one of {", ".join(_FIELDS)}')
        if name in fields:
            raise WorkloadError(f'--mix: "{name}" is repeated in "{_without_key(text)}"')
        fields[name] = value
    return Sender(
        prompt=TokenRange.parse(fields["prompt"]) if "prompt" in fields else prompt,
        output=TokenRange.parse(fields["output"]) if "output" in fields else output,
        service_class=fields.get("class"),
        tier=fields.get("tier"),
        tenant=fields.get("tenant"),
        key=read_key(fields["key"], environment) if "key" in fields else key,
        share=_share(fields.get("share", "1")),
    )


def read_key(text: str, environment: Mapping[str, str]) -> str:
    """Returns the key itself or, for `env:NAME`, the value of that environment variable, which does not appear in
    process lists.
    """
    name = text.removeprefix("env:")
    key = environment.get(name, "") if name != text else text
    if not key:
        raise WorkloadError(f"environment variable {name} is not set; export the API key in it")
    if not key.isascii() or not key.isprintable():
        raise WorkloadError("the API key has characters that a header must not contain; check how it was exported")
    return key


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < float("inf"):
        raise WorkloadError(f'--mix: share must be a number above 0, not "{text}"')
    return share


def _without_key(text: str) -> str:
    return ",".join("key=…" if part.strip().startswith("key=") else part for part in text.split(","))


class _Kind(NamedTuple):
    """Requests of a trace that have one sender."""

    service_class: str | None
    tenant: str | None
    model: str | None
    stream: bool | None
    base: int | None
    """Configured sender that the sender is based on. None to look for one that matches."""


_OTHER: Final = _Kind(None, "other", None, None, None)


class SenderTable:
    """All senders in a run, by index. A trace can add classes and tenants that are not in `--mix`."""

    def __init__(self, senders: Sequence[Sender], *, named_max: int = SENDERS_MAX) -> None:
        self._named_max = named_max
        self.senders = list(senders)
        self._configured = tuple(senders)
        self._index_by_kind: dict[_Kind, int] = {}

    def index_for(
        self,
        service_class: str | None,
        tenant: str | None,
        *,
        model: str | None = None,
        stream: bool | None = None,
        base: int | None = None,
    ) -> int:
        """Returns the sender index for a trace row. `base` is the `--mix` sender of a row without class and tenant."""
        kind = _Kind(service_class, tenant, model, stream, base)
        if base is not None and kind == _Kind(None, None, None, None, base):
            return base
        if kind not in self._index_by_kind and len(self._index_by_kind) >= self._named_max:
            kind = _OTHER
        known = self._index_by_kind.get(kind)
        if known is None:
            known = self._index_by_kind[kind] = self._add(kind)
        return known

    def _add(self, kind: _Kind) -> int:
        matching = next((each for each in self._configured if _matches(each, kind.service_class, kind.tenant)), None)
        like = (matching or self._configured[0]) if kind.base is None else self._configured[kind.base]
        self.senders.append(
            replace(
                like,
                service_class=kind.service_class or like.service_class,
                tenant=kind.tenant or like.tenant,
                share=1.0,
                model=kind.model,
                stream=kind.stream,
            )
        )
        return len(self.senders) - 1


def _matches(sender: Sender, service_class: str | None, tenant: str | None) -> bool:
    return sender.tenant in (None, tenant) and sender.service_class in (None, service_class)
