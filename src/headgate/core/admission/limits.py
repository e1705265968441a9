"""Is a tenant still within its limits, at every level of its path?

A tenant `acme/search/nightly` is bound by the limits of `acme`, of `acme/search` and of itself, as far as the policy
names them. A request comes in only where it fits all of them at once, so that a refusal takes nothing anywhere.

Theory of operation. A rate remembers how much is used, and what is used drains evenly: a minute's limit in a minute.
What does not make it more than the limit fits, so a full minute may come at once, and nothing is refilled by a clock.
A request counts as one when it is admitted, regardless of its outcome; one that a gateway rejects after reading its
body counts too. Its predicted tokens are reserved at that time; when its last attempt has ended, the reservation
becomes the tokens actually used. If these exceed the prediction, the difference is a debt, and later requests wait for
it. If they are fewer, the difference is returned, but only the part that has not drained meanwhile: a minute that was
reserved is over and is not handed out a second time. So in any span of time the admitted amount never exceeds the limit
for that span plus one minute, however much is returned.

Known limitation: everything that came after a reservation is assumed to be still there, whether or not it was returned.
A tenant with long requests and much too high predictions gets back less than it could, never more.

All numbers are integers, and every operation looks at the levels of one path only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.core.counters import LimitCounter
from headgate.model.limits import Limits, LimitsLeft, RateLeft
from headgate.model.outcome import Outcome
from headgate.model.tenant import Tenant
from headgate.model.ticket import WITHOUT_OUTPUT, Ticket
from headgate.model.units import MINUTE, SECOND, Duration, Instant, RequestId, TenantId, seconds

_LONG_AGO: Final = -(2**63)
"""The mark of a reservation of which all has drained."""
_PARTED: Final = Duration(10 * SECOND)
"""Who does not fit a part of a limit asks again after this: gateways that do not hear each other usually soon do."""
_LIFE_GUESS: Final = SECOND
_NO_LIMITS: Final = Limits()
_SCANNED_MAX: Final = 64
"""Where more than so many levels change, all paths are looked at anew."""
_LIFE_PARTS: Final = 8
"""A request that ends moves what is known of how long they stay by an eighth of the difference."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Which limit a request does not fit, and for how long."""

    outcome: Outcome
    reason: str
    wait_ns: Duration | None


class Rate:
    """What is used of so many per minute.

    One that is used counts as so many parts as a minute has nanoseconds, so that what drains in a nanosecond is the
    limit itself. Kept is the point up to which it has to drain; how much is used follows from that and the time.
    """

    __slots__ = ("_added", "_up_to", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._up_to = 0
        self._added = 0
        """All that was ever used, in whole units."""

    def change(self, limit: int, now: Instant) -> None:
        """What is used stays used, and drains at the new pace."""
        self._up_to = limit * now + self.used(now)
        self.limit = limit

    def wait_ns(self, amount: int, now: Instant) -> Duration:
        """How long until so much, which is not more than the limit, fits if nothing else comes; 0 where it does."""
        missing = self._up_to + (amount - self.limit) * MINUTE - self.limit * now
        return Duration(-(-missing // max(1, self.limit))) if missing > 0 else Duration(0)

    def take(self, amount: int, now: Instant) -> int:
        """Uses so much; a mark by which it can be settled."""
        drained = self.limit * now
        self._up_to = max(drained, self._up_to) + amount * MINUTE
        self._added += amount
        return self._added

    def settle(self, mark: int, now: Instant, *, reserved: int, actual: int) -> None:
        if actual >= reserved:
            self.take(actual - reserved, now)
        else:
            not_drained = self.used(now) - (self._added - mark) * MINUTE
            self._up_to -= max(0, min((reserved - actual) * MINUTE, not_drained))

    def restore(self, used: int, now: Instant) -> None:
        """So much, in parts, was in use at that moment."""
        self._up_to = self.limit * now + used

    def used(self, now: Instant) -> int:
        """What is in use, in parts."""
        return max(0, self._up_to - self.limit * now)

    def left(self, now: Instant) -> tuple[int, int, int]:
        """What is left, which may be less than nothing, in whole units; what is in use, in parts; and the limit."""
        limit, used = self.limit, self._up_to - self.limit * now
        return (limit - -(-used // MINUTE), used, limit) if used > 0 else (limit, 0, limit)

    def holds(self, amount: int, now: Instant) -> bool:
        """Whether so much fits."""
        return self._up_to + (amount - self.limit) * MINUTE <= self.limit * now


class _Level:
    """One tenant of a path that has limits."""

    __slots__ = (
        "concurrency",
        "concurrency_whole",
        "life_ns",
        "open",
        "requests",
        "tenant",
        "tokens",
        "tokens_whole",
    )

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.requests: Rate | None = None
        self.tokens: Rate | None = None
        self.tokens_whole = 0
        """Of how many per minute these tokens are a part; 0 where they are all."""
        self.concurrency: int | None = None
        self.concurrency_whole = 0
        """The whole concurrency if this is a share of it; 0 if this is all of it."""
        self.open = 0
        """Unfinished requests of the tenant and of those below it; a request counts once per prompt."""
        self.life_ns = _LIFE_GUESS
        """How long its requests stay, the last ones counting most."""

    def change(self, limits: Limits, now: Instant) -> None:
        self.requests = _changed(self.requests, limits.requests_per_minute, now)
        self.tokens = _changed(self.tokens, limits.tokens_per_minute, now)
        self.tokens_whole = limits.tokens_whole or 0
        self.concurrency = limits.concurrency
        self.concurrency_whole = limits.concurrency_whole or 0

    def shortages(self, asked: "Asked", now: Instant) -> Iterator[Shortage]:
        """Each limit for which there is no room, in words."""
        name = f'tenant "{self.tenant}"'
        sequences, prompt_tokens, tokens = asked
        if self.concurrency is not None and self.open + sequences > self.concurrency:
            yield self._too_many_open(name, sequences, self.concurrency)
        if self.requests is not None and (wait := self.requests.wait_ns(1, now)):
            reason = f"{name} has used up its {self.requests.limit} requests per minute; wait {seconds(wait)}"
            yield Shortage(Outcome.RATE_LIMITED, f"{reason} or raise its requests_per_minute", wait)
        if self.tokens is None:
            return
        limit = self.tokens.limit
        if limit < prompt_tokens <= self.tokens_whole:
            whole = f"of the {self.tokens_whole} that {name} may use per minute {limit} are to be had here"
            reason = f"the prompt has about {prompt_tokens} tokens and {whole}, as long as not all gateways answer"
            reason += f"; wait {seconds(_PARTED)}"
            yield Shortage(Outcome.RATE_LIMITED, reason, _PARTED)
        elif prompt_tokens > limit:
            reason = f"the prompt has about {prompt_tokens} tokens and {name} may use {limit} per minute; shorten it"
            yield Shortage(Outcome.TOO_LARGE, f"{reason} or raise its tokens_per_minute", None)
        elif wait := self.tokens.wait_ns(min(tokens, limit), now):
            left = max(0, limit - -(-self.tokens.used(now) // MINUTE))
            reason = f"{name} has {left} of {limit} tokens per minute left and this request may take {tokens}"
            reason += f"; wait {seconds(wait)} or raise its tokens_per_minute"
            yield Shortage(Outcome.RATE_LIMITED, reason, wait)

    def _too_many_open(self, name: str, sequences: int, most: int) -> Shortage:
        wait = Duration(self.life_ns // max(1, most))
        if sequences > max(1, most, self.concurrency_whole):
            reason = f"the request has {sequences} prompts and {name} may have {most} open at once"
            reason += f"; send at most {most} prompts in one request or raise its concurrency"
            return Shortage(Outcome.TOO_LARGE, reason, None)
        count = f"{self.open} of {most} requests open"
        if sequences > 1:
            count += f" and this one has {sequences} prompts, and each prompt counts as one"
            wait = _PARTED if sequences > most else wait
        reason = f"{name} has {count}; wait for one to end or raise its concurrency"
        return Shortage(Outcome.RATE_LIMITED, reason, wait)


class Asked(NamedTuple):
    """The amounts that a request needs within the limits."""

    sequences: int
    prompt_tokens: int
    tokens: int


_NEXT: Final = Asked(1, 0, 0)
"""The smallest possible request."""


class _Path:
    """The levels of a tenant's path that have limits, the outermost first."""

    __slots__ = ("levels", "requests", "tokens")

    def __init__(self, levels: list[_Level]) -> None:
        self.levels = levels
        self.requests = [level.requests for level in levels if level.requests is not None]
        self.tokens = [level.tokens for level in levels if level.tokens is not None]

    def has_room(self, asked: Asked, now: Instant) -> bool:
        """As `shortage`, for the usual case in which there is none."""
        sequences, prompt_tokens, tokens = asked
        for level in self.levels:
            if level.concurrency is not None and level.open + sequences > level.concurrency:
                return False
        for rate in self.requests:
            if not rate.holds(1, now):
                return False
        for rate in self.tokens:
            if prompt_tokens > rate.limit or not rate.holds(min(tokens, rate.limit), now):
                return False
        return True

    def shortage(self, asked: Asked, now: Instant) -> Shortage | None:
        """The limit that does not fit; where there are several, the one that will fit last."""
        worst: Shortage | None = None
        for level in self.levels:
            for each in level.shortages(asked, now):
                if worst is None or _later(each, worst):
                    worst = each
        return worst


class _Claim:
    """What one request has reserved."""

    __slots__ = ("ended", "levels", "reserved", "sequences", "since", "tenant", "used")

    def __init__(self, ticket: Ticket, levels: list[_Level], now: Instant) -> None:
        self.tenant = ticket.tenant
        self.sequences = ticket.sequences
        """The number of open requests that it counts as."""
        self.levels = levels
        """Where it counts as open."""
        self.since = now
        self.reserved: list[tuple[Rate, int, int]] = []
        """Tokens: where, how many, and their mark."""
        self.used = 0
        """What its last attempt took."""
        self.ended = False
        """Whether only its attempt is still to end."""


class TenantLimits:
    __slots__ = ("_claims", "_levels", "_paths", "_told")

    def __init__(self) -> None:
        self._told: dict[TenantId, Limits] = {}
        """Of every tenant, whether limited or not, as the policy has them."""
        self._levels: dict[TenantId, _Level] = {}
        self._paths: dict[TenantId, _Path] = {}
        """Of each tenant that is limited at any level."""
        self._claims: dict[RequestId, _Claim] = {}
        """Of each request of theirs that is open or whose attempt is."""

    def change_rules(self, tenants: Iterable[Tenant], open_requests: Iterable[Ticket], now: Instant) -> None:
        """Takes new limits. What is known of those that stay is kept, and what is open is counted anew.

        Tenants may be many and a change is mostly of few: only what differs is worked on.
        """
        known, self._told = self._told, {tenant.id: tenant.limits for tenant in tenants}
        # Most are the very same value, and comparing two is dear.
        differing = [
            name for name, limits in self._told.items() if (was := known.get(name)) is not limits and was != limits
        ]
        differing += [name for name in known if name not in self._told]
        for name in differing:
            self._change_level(name, self._told.get(name, _NO_LIMITS), now)
        affected = self._below(differing, known)
        for name in affected:
            if levels := self._levels_of(name):
                self._paths[name] = _Path(levels)
            else:
                self._paths.pop(name, None)
        for ticket in open_requests:
            if ticket.request_id not in self._claims and ticket.tenant in self._paths:
                self._claims[ticket.request_id] = _Claim(ticket, self._levels_of(ticket.tenant), now)
        if differing:
            self._count_anew()

    def _change_level(self, name: TenantId, limits: Limits, now: Instant) -> None:
        if limits == _NO_LIMITS:
            self._levels.pop(name, None)
            return
        if (level := self._levels.get(name)) is None:
            level = self._levels[name] = _Level(name)
        level.change(limits, now)

    def _below(self, differing: list[TenantId], known: Mapping[TenantId, Limits]) -> Iterable[TenantId]:
        """Whose path may have other levels than it had: those that differ, and all below one that is limited or was."""
        limited = [
            name
            for name in differing
            if known.get(name, _NO_LIMITS) != _NO_LIMITS or self._told.get(name, _NO_LIMITS) != _NO_LIMITS
        ]
        if len(limited) > _SCANNED_MAX:
            self._paths.clear()
            return self._told
        for name in differing:
            self._paths.pop(name, None)
        above = tuple(f"{name}/" for name in limited)
        affected = [name for name in self._told if name.startswith(above)] if above else []
        return [*(name for name in differing if name in self._told), *affected]

    def _count_anew(self) -> None:
        for level in self._levels.values():
            level.open = 0
        for claim in self._claims.values():
            claim.levels = self._levels_of(claim.tenant)
            if not claim.ended:
                for level in claim.levels:
                    level.open += claim.sequences

    def shortage(self, ticket: Ticket, prompt_tokens: int, output_tokens: int, now: Instant) -> Shortage | None:
        """Which limit the request does not fit at this moment."""
        path = self._paths.get(ticket.tenant)
        if path is None:
            return None
        asked = Asked(ticket.sequences, prompt_tokens, _tokens(ticket, prompt_tokens, output_tokens))
        return None if path.has_room(asked, now) else path.shortage(asked, now)

    def reached(self, tenant: TenantId, now: Instant) -> Shortage | None:
        """The limit that leaves no room for any request of the tenant, however short."""
        path = self._paths.get(tenant)
        return None if path is None or path.has_room(_NEXT, now) else path.shortage(_NEXT, now)

    def take(self, ticket: Ticket, prompt_tokens: int, output_tokens: int, now: Instant) -> None:
        """It comes in: counts it at every level of its path."""
        path = self._paths.get(ticket.tenant)
        if path is None:
            return
        claim = self._claims[ticket.request_id] = _Claim(ticket, path.levels, now)
        for level in path.levels:
            level.open += claim.sequences
        for rate in path.requests:
            rate.take(1, now)
        tokens = _tokens(ticket, prompt_tokens, output_tokens)
        for rate in path.tokens:
            amount = min(tokens, rate.limit)
            claim.reserved.append((rate, amount, rate.take(amount, now)))

    def take_rejected(self, tenant: TenantId, now: Instant) -> None:
        """Counts a request that a gateway rejected, at every level with room for one: rejections cause no debt."""
        path = self._paths.get(tenant)
        for rate in () if path is None else path.requests:
            if rate.holds(1, now):
                rate.take(1, now)

    def attempt_ended(self, request_id: RequestId, tokens: int, now: Instant) -> None:
        """An attempt took so many tokens. If its request is over they are what the request has used."""
        claim = self._claims.get(request_id)
        if claim is None:
            return
        claim.used = tokens
        if claim.ended:
            self._settle(request_id, claim, now)

    def request_ended(self, request_id: RequestId, now: Instant, *, in_flight: bool) -> None:
        """It is over. As long as an attempt of it is in flight its tokens stay reserved."""
        claim = self._claims.get(request_id)
        if claim is None or claim.ended:
            return
        for level in claim.levels:
            level.open -= claim.sequences
            level.life_ns = Duration(level.life_ns + (now - claim.since - level.life_ns) // _LIFE_PARTS)
        claim.ended = True
        if not in_flight:
            self._settle(request_id, claim, now)

    def left(self, tenant: TenantId, now: Instant) -> LimitsLeft | None:
        """What a caller is told: of each rate, the level at which least is left."""
        path = self._paths.get(tenant)
        if path is None or not (path.requests or path.tokens):
            return None
        return LimitsLeft(least_left(path.requests, now), least_left(path.tokens, now))

    # For a successor, and from a predecessor

    def counters(self, now: Instant) -> tuple[LimitCounter, ...]:
        """Of those that have used anything lately."""
        found: list[LimitCounter] = []
        for level in self._levels.values():
            requests = 0 if level.requests is None else level.requests.used(now)
            tokens = 0 if level.tokens is None else level.tokens.used(now)
            if requests or tokens:
                found.append(LimitCounter(level.tenant, requests, tokens, level.life_ns))
        return tuple(found)

    def restore(self, counters: Iterable[LimitCounter], now: Instant) -> None:
        for each in counters:
            if (level := self._levels.get(each.tenant)) is not None:
                level.life_ns = each.life_ns
                for rate, used in ((level.requests, each.requests), (level.tokens, each.tokens)):
                    if rate is not None:
                        rate.restore(used, now)

    def adopt(
        self, ticket: Ticket, prompt_tokens: int, output_tokens: int, arrived: Instant, now: Instant, *, counted: bool
    ) -> None:
        """It was let in by another scheduler: counts it as open, and where that did not count it for us, as come in.

        Of what was reserved by the other nothing is given back: nobody knows how much of it has drained.
        """
        path = self._paths.get(ticket.tenant)
        if path is None or ticket.request_id in self._claims:
            return
        if not counted:
            self.take(ticket, prompt_tokens, output_tokens, now)
            self._claims[ticket.request_id].since = arrived
            return
        claim = self._claims[ticket.request_id] = _Claim(ticket, path.levels, arrived)
        for level in path.levels:
            level.open += claim.sequences
        tokens = _tokens(ticket, prompt_tokens, output_tokens)
        claim.reserved = [(rate, min(tokens, rate.limit), _LONG_AGO) for rate in path.tokens]

    def _settle(self, request_id: RequestId, claim: _Claim, now: Instant) -> None:
        del self._claims[request_id]
        for rate, amount, mark in claim.reserved:
            rate.settle(mark, now, reserved=amount, actual=claim.used)

    def _levels_of(self, tenant: TenantId) -> list[_Level]:
        steps = tenant.split("/")
        names = [TenantId("/".join(steps[:depth])) for depth in range(1, len(steps) + 1)]
        return [self._levels[name] for name in names if name in self._levels]


def _changed(rate: Rate | None, limit: int | None, now: Instant) -> Rate | None:
    if limit is None:
        return None
    if rate is None:
        return Rate(limit)
    rate.change(limit, now)
    return rate


def _tokens(ticket: Ticket, prompt_tokens: int, output_tokens: int) -> int:
    """What a request is predicted to take. An embedding has no answer of tokens, nor have tensors."""
    return prompt_tokens if ticket.api in WITHOUT_OUTPUT else prompt_tokens + output_tokens


def _later(one: Shortage, other: Shortage) -> bool:
    """Whether this one lasts longer. What never fits lasts longest."""
    return other.wait_ns is not None and (one.wait_ns is None or one.wait_ns > other.wait_ns)


def least_left(rates: list[Rate], now: Instant) -> RateLeft | None:
    """What is left of the rate of which least is."""
    if not rates:
        return None
    if len(rates) == 1:
        remaining, used, limit = rates[0].left(now)
    else:
        remaining, used, limit = min(rate.left(now) for rate in rates)
    return RateLeft(limit, max(0, remaining), Duration(-(-used // (limit or 1))))
