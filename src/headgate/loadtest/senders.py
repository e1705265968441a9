"""Who sends the traffic, and what share of it?

A sender is one kind of caller: its class, its tenant and key, its share of the arrivals, and the sizes of what it asks
for. On the command line it is written as `class=interactive,tenant=acme,share=0.7,key=env:ACME_KEY,prompt=200:2000`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from headgate.loadtest.problem import Problem

TOKENS_MAX: Final = 1_000_000
"""The largest prompt or answer that may be asked for."""
UNNAMED: Final = "unnamed"
"""What a report calls a class or tenant that was not named."""
SENDERS_MAX: Final = 1_000
"""How many kinds of callers a trace may name; the rest are reported as one."""

_FIELDS: Final = ("class", "tier", "tenant", "key", "share", "prompt", "output")


@dataclass(frozen=True, slots=True)
class Sizes:
    """A number of tokens, evenly drawn between two bounds, both included."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> "Sizes":
        """`200` or `200:2000`."""
        least, colon, most = text.partition(":")
        try:
            sizes = cls(int(least), int(most if colon else least))
        except ValueError:
            raise Problem(f'"{text}" is no size in tokens; write 200 or 200:2000') from None
        if not 1 <= sizes.least <= sizes.most <= TOKENS_MAX:
            raise Problem(f'"{text}" is no size in tokens; write two numbers from 1 to {TOKENS_MAX}, the lesser first')
        return sizes

    def draw(self, random: Random) -> int:
        return self.least if self.least == self.most else random.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Sender:
    prompt: Sizes
    output: Sizes
    service_class: str | None = None
    """Goes out as `x-headgate-class`."""
    tier: str | None = None
    """Goes out as `service_tier`."""
    tenant: str | None = None
    """What the report calls the tenant; the server knows it by the key."""
    key: str | None = field(default=None, repr=False)
    share: float = 1.0

    @property
    def class_label(self) -> str:
        return self.service_class or self.tier or UNNAMED

    @property
    def tenant_label(self) -> str:
        return self.tenant or UNNAMED


def parse_sender(
    text: str, environment: Mapping[str, str], *, prompt: Sizes, output: Sizes, key: str | None = None
) -> Sender:
    """One `--mix`; what it does not say is as the arguments say."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in _FIELDS:
            raise Problem(f'--mix: "{part}" is not understood; write NAME=VALUE with one of {", ".join(_FIELDS)}')
        if name in fields:
            raise Problem(f'--mix: "{name}" stands twice in "{_without_key(text)}"')
        fields[name] = value
    return Sender(
        prompt=Sizes.parse(fields["prompt"]) if "prompt" in fields else prompt,
        output=Sizes.parse(fields["output"]) if "output" in fields else output,
        service_class=fields.get("class"),
        tier=fields.get("tier"),
        tenant=fields.get("tenant"),
        key=read_key(fields["key"], environment) if "key" in fields else key,
        share=_share(fields.get("share", "1")),
    )


def read_key(text: str, environment: Mapping[str, str]) -> str:
    """A key as it stands, or `env:NAME` for the one in the environment: others can read a command line."""
    name = text.removeprefix("env:")
    key = environment.get(name, "") if name != text else text
    if not key:
        raise Problem(f"the environment holds no {name}; export the key under that name")
    if not key.isascii() or not key.isprintable():
        raise Problem("a key holds characters that cannot stand in a header; check how it was exported")
    return key


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < float("inf"):
        raise Problem(f'--mix: share must be a number above 0, not "{text}"')
    return share


def _without_key(text: str) -> str:
    return ",".join("key=…" if part.strip().startswith("key=") else part for part in text.split(","))


class Roster:
    """All senders of a run, by number. A trace may name classes and tenants that `--mix` does not."""

    def __init__(self, senders: Sequence[Sender], *, named_max: int = SENDERS_MAX) -> None:
        self._named_max = named_max
        self.senders = list(senders)
        self._given = tuple(senders)
        self._known: dict[tuple[str | None, str | None], int] = {}

    def named(self, service_class: str | None, tenant: str | None) -> int:
        """The number of the sender for a row of a trace that names its class, its tenant or both."""
        known = self._known.get((service_class, tenant))
        if known is None:
            known = self._known[service_class, tenant] = self._find_or_add(service_class, tenant)
        return known

    def _find_or_add(self, service_class: str | None, tenant: str | None) -> int:
        model = next((each for each in self._given if _matches(each, service_class, tenant)), None)
        if len(self._known) >= self._named_max:
            service_class, tenant = None, "other"
            if (known := self._known.get((None, "other"))) is not None:
                return known
        base = model or self._given[0]
        self.senders.append(
            Sender(
                prompt=base.prompt,
                output=base.output,
                service_class=service_class or base.service_class,
                tier=base.tier,
                tenant=tenant or base.tenant,
                key=base.key,
            )
        )
        return len(self.senders) - 1


def _matches(sender: Sender, service_class: str | None, tenant: str | None) -> bool:
    return sender.tenant in (None, tenant) and sender.service_class in (None, service_class)
