"""Rate and concurrency limits, enforced at every level of a tenant's path.

The limits of `acme`, `acme/search` and `acme/search/nightly` all apply to the tenant `acme/search/nightly`, if the
policy defines them. A request is admitted only if it is within all of them, so a rejected request consumes nothing at
any level.

Theory of operation. Each rate is a leaky bucket: usage drains at a constant rate, equal to the limit per minute. An
amount fits if adding it does not push usage above the limit, so a full minute's allowance can arrive in one burst. No
timer is needed.

A request counts against the limits when it is admitted, regardless of its outcome. A request that a gateway rejects
after reading its body counts too. Admission reserves the predicted tokens. When the last attempt ends, the tokens
actually used replace the reservation. If more were used than reserved, the difference is a debt that delays later
requests. If fewer were used, only the part of the difference that has not drained yet is returned. In any time span,
the admitted amount therefore never exceeds the limit for that span plus one minute.

Known limitation: usage added after a reservation is assumed to be still in the bucket, even if it was returned. A
tenant with long requests and predictions that are far too high gets back less than it is due, but never more.

All numbers are integers, and every operation visits only the levels of one path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.core.account_shares import divided_limits, whole_share
from headgate.core.admission.leaky_bucket import LeakyBucket
from headgate.core.counters import LimitCounter
from headgate.core.overrides import stricter
from headgate.model.limits import WHOLE_PPM, WHOLE_SHARE, Limits, LimitShare, LimitsLeft, RateLeft
from headgate.model.outcome import Outcome
from headgate.model.persistent_map import PersistentMap
from headgate.model.tenant import Tenant, below, levels_of
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Ticket
from headgate.model.units import MINUTE, SECOND, Duration, Instant, RequestId, TenantId, format_seconds

_LONG_AGO: Final = -(2**63)
"""Marks a reservation that has drained completely."""
_SHARE_RETRY_NS: Final = Duration(10 * SECOND)
"""`Retry-After` for a request that exceeds a share of a limit. Gateways usually reconnect within this time."""
_DURATION_GUESS: Final = SECOND
_NO_LIMITS: Final = Limits()
_DURATION_SMOOTHING: Final = 8
"""Smoothing factor for the mean request duration: each finished request moves the mean by 1/8 of the difference."""


@dataclass(frozen=True, slots=True)
class QuotaShortage:
    """A limit that a request exceeds, and the time until the request fits."""

    outcome: Outcome
    reason: str
    wait_ns: Duration | None


class _Level:
    """One tenant on a path, with its own limits."""

    __slots__ = (
        "concurrency",
        "concurrency_whole",
        "duration_ns",
        "open",
        "requests",
        "share",
        "tenant",
        "tokens",
        "tokens_whole",
    )

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.requests: LeakyBucket | None = None
        self.tokens: LeakyBucket | None = None
        self.tokens_whole = 0
        """Total tokens per minute if `tokens` is only a share of the limit, otherwise 0."""
        self.share = WHOLE_SHARE
        """Share of the limits that this cell may use."""
        self.concurrency: int | None = None
        self.concurrency_whole = 0
        """Total concurrency if `concurrency` is only a share of the limit, otherwise 0."""
        self.open = 0
        """Open requests from the tenant and its descendants. A request counts once per prompt."""
        self.duration_ns = _DURATION_GUESS
        """Moving average of request durations."""

    def change(self, limits: Limits, now: Instant) -> None:
        before, self.share = self.share, limits.share
        same_share = before.requests_ppm == self.share.requests_ppm
        self.requests = _changed(self.requests, limits.requests_per_minute, now, same_share=same_share)
        same_share = before.tokens_ppm == self.share.tokens_ppm
        self.tokens = _changed(self.tokens, limits.tokens_per_minute, now, same_share=same_share)
        self.tokens_whole = limits.total_tokens_per_minute or 0
        self.concurrency = limits.concurrency
        self.concurrency_whole = limits.total_concurrency or 0

    def shortages(self, requested: "RequestedAmounts", now: Instant) -> Iterator[QuotaShortage]:
        """Yields a shortage for each limit that the request exceeds."""
        name = self._name(self.share.requests_ppm)
        sequences, prompt_tokens, tokens = requested
        if self.concurrency is not None and self.open + sequences > self.concurrency:
            yield self._too_many_open(name, sequences, self.concurrency)
        if self.requests is not None and (wait := self.requests.wait_ns(1, now)):
            reason = f"{name} has reached its limit of {self.requests.limit} requests per minute"
            reason += f"; retry in {format_seconds(wait)} or raise requests_per_minute"
            yield QuotaShortage(Outcome.RATE_LIMITED, reason, wait)
        if self.tokens is None:
            return
        name, limit = self._name(self.share.tokens_ppm), self.tokens.limit
        if limit < prompt_tokens <= self.tokens_whole:
            share = f"{limit} of the {self.tokens_whole} tokens per minute of {name}"
            reason = f"the prompt has about {prompt_tokens} tokens, but this gateway may use only {share}"
            if self.share.tokens_ppm == WHOLE_PPM:
                reason += " while other gateways are unreachable"
            reason += f"; retry in {format_seconds(_SHARE_RETRY_NS)}"
            yield QuotaShortage(Outcome.RATE_LIMITED, reason, _SHARE_RETRY_NS)
        elif prompt_tokens > limit:
            reason = f"the prompt has about {prompt_tokens} tokens, but {name} may use only {limit} tokens per minute"
            reason += "; shorten the prompt or raise tokens_per_minute"
            yield QuotaShortage(Outcome.REQUEST_TOO_LARGE, reason, None)
        elif wait := self.tokens.wait_ns(min(tokens, limit), now):
            left = max(0, limit - -(-self.tokens.used(now) // MINUTE))
            reason = f"{name} has {left} of {limit} tokens per minute left, but this request may use {tokens}"
            reason += f"; retry in {format_seconds(wait)} or raise tokens_per_minute"
            yield QuotaShortage(Outcome.RATE_LIMITED, reason, wait)

    def _name(self, share_ppm: int) -> str:
        name = f'tenant "{self.tenant}"'
        if share_ppm == WHOLE_PPM:
            return name
        return f"{name} (with {share_ppm / 10_000:.3g} % of its limits in this cell)"

    def _too_many_open(self, name: str, sequences: int, most: int) -> QuotaShortage:
        wait = Duration(self.duration_ns // max(1, most))
        if sequences > max(1, most, self.concurrency_whole):
            reason = f"the request has {sequences} prompts, but the concurrency limit of {name} is {most}"
            reason += f"; send at most {most} prompts per request or raise concurrency"
            return QuotaShortage(Outcome.REQUEST_TOO_LARGE, reason, None)
        count = f"{self.open} of {most} requests open"
        if sequences > 1:
            count += f", and this request counts as {sequences} (one per prompt)"
            wait = _SHARE_RETRY_NS if sequences > most else wait
        reason = f"{name} has {count}; wait for a request to finish or raise concurrency"
        return QuotaShortage(Outcome.RATE_LIMITED, reason, wait)


class RequestedAmounts(NamedTuple):
    """Amounts charged against a request's limits."""

    sequences: int
    prompt_tokens: int
    tokens: int


_SMALLEST: Final = RequestedAmounts(1, 0, 0)
"""The smallest possible request."""


class _Path:
    """Levels of a tenant's path that have limits, outermost first."""

    __slots__ = ("levels", "requests", "tokens")

    def __init__(self, levels: list[_Level]) -> None:
        self.levels = levels
        self.requests = [level.requests for level in levels if level.requests is not None]
        self.tokens = [level.tokens for level in levels if level.tokens is not None]

    def has_room(self, requested: RequestedAmounts, now: Instant) -> bool:
        """Whether the request is within all limits. Faster than `shortage` in the usual case, where it is."""
        sequences, prompt_tokens, tokens = requested
        for level in self.levels:
            if level.concurrency is not None and level.open + sequences > level.concurrency:
                return False
        for rate in self.requests:
            if not rate.fits(1, now):
                return False
        for rate in self.tokens:
            if prompt_tokens > rate.limit or not rate.fits(min(tokens, rate.limit), now):
                return False
        return True

    def shortage(self, requested: RequestedAmounts, now: Instant) -> QuotaShortage | None:
        """Returns the exceeded limit with the longest wait."""
        worst: QuotaShortage | None = None
        for level in self.levels:
            for each in level.shortages(requested, now):
                if worst is None or _lasts_longer(each, worst):
                    worst = each
        return worst


class _Claim:
    """Reservation of one request."""

    __slots__ = ("ended", "levels", "reserved", "sequences", "since", "tenant", "used")

    def __init__(self, ticket: Ticket, levels: list[_Level], now: Instant) -> None:
        self.tenant = ticket.tenant
        self.sequences = ticket.sequences
        """Number of open requests that this request counts as: one per prompt."""
        self.levels = levels
        """Levels that count the request as open."""
        self.since = now
        self.reserved: list[tuple[LeakyBucket, int, int]] = []
        """Token reservations as (rate, tokens, mark)."""
        self.used = 0
        """Tokens that the last attempt used."""
        self.ended = False
        """Whether the request has ended, although an attempt may still be in flight."""

    def count(self, change: int) -> None:
        """Counts the request as open at its levels (1), or takes it back (-1)."""
        if not self.ended:
            for level in self.levels:
                level.open += change * self.sequences


class TenantLimits:
    __slots__ = ("_claims", "_levels", "_tenants", "_throttles", "paths", "share_of")

    def __init__(self) -> None:
        self.share_of: Callable[[TenantId], LimitShare] = whole_share
        """Returns the share of a tenant's limits that this cell may use."""
        self._tenants: PersistentMap[TenantId, Tenant] = PersistentMap()
        self._throttles: Mapping[TenantId, Limits] = {}
        self._levels: dict[TenantId, _Level] = {}
        self.paths: dict[TenantId, _Path] = {}
        """Paths of tenants with a limit at any level."""
        self._claims: dict[RequestId, _Claim] = {}
        """Reservations, by request, for requests that are open or have an attempt in flight."""

    def change_rules(
        self,
        tenants: PersistentMap[TenantId, Tenant],
        throttles: Mapping[TenantId, Limits],
        open_requests: Iterable[Ticket],
        now: Instant,
    ) -> None:
        """Applies new limits. Limits that remain keep their usage, and open requests are counted again.

        `throttles` are the limits that operators have set. They may name levels that the policy does not define. There
        can be many tenants, and most changes affect few of them, so only differences are processed.
        """
        known, throttled = self._tenants, self._throttles
        self._tenants, self._throttles = tenants, throttles
        differing = tenants.changes_since(known)
        affected: dict[TenantId, None] = dict.fromkeys(differing)
        for name in {**differing, **throttled, **throttles}:
            was, limits = _limits_of(name, known, throttled), _limits_of(name, tenants, throttles)
            if was != limits:
                self._change_level(name, limits, now)
                affected[name] = None
                affected.update(dict.fromkeys(below(name, tenants)))
        if affected:
            self._change_paths(affected, open_requests, now)

    def _change_paths(self, affected: dict[TenantId, None], open_requests: Iterable[Ticket], now: Instant) -> None:
        for name in affected:
            levels = self._levels_of(name) if name in self._tenants else []
            if levels:
                self.paths[name] = _Path(levels)
            else:
                self.paths.pop(name, None)
        for claim in self._claims.values():
            # Levels without a path belong to a tenant that has been removed.
            if claim.tenant in affected or claim.tenant not in self.paths:
                claim.count(-1)
                claim.levels = self._levels_of(claim.tenant)
                claim.count(1)
        for ticket in open_requests:
            if ticket.tenant in affected and ticket.tenant in self.paths and ticket.request_id not in self._claims:
                claim = self._claims[ticket.request_id] = _Claim(ticket, self._levels_of(ticket.tenant), now)
                claim.count(1)

    def _change_level(self, name: TenantId, limits: Limits, now: Instant) -> None:
        if limits == _NO_LIMITS:
            self._levels.pop(name, None)
            return
        if (level := self._levels.get(name)) is None:
            level = self._levels[name] = _Level(name)
        level.change(divided_limits(limits, self.share_of(name)), now)

    def change_shares(self, names: Iterable[TenantId], since: Instant) -> None:
        """Applies the changed shares of these levels, which took effect at `since`.

        Shares do not affect paths, so neither open requests nor other levels are visited.
        """
        for name in names:
            level = self._levels.get(name)
            if level is not None and level.share != (share := self.share_of(name)):
                limits = _limits_of(name, self._tenants, self._throttles)
                level.change(divided_limits(limits, share), since)

    @property
    def limited(self) -> Iterable[TenantId]:
        """Levels with limits."""
        return self._levels

    @property
    def throttled(self) -> Iterable[TenantId]:
        """Levels whose limits an operator has changed."""
        return self._throttles

    def shortage(self, ticket: Ticket, prompt_tokens: int, output_tokens: int, now: Instant) -> QuotaShortage | None:
        """Returns the limit that the request exceeds now."""
        path = self.paths.get(ticket.tenant)
        if path is None:
            return None
        asked = RequestedAmounts(ticket.sequences, prompt_tokens, _tokens(ticket, prompt_tokens, output_tokens))
        return None if path.has_room(asked, now) else path.shortage(asked, now)

    def reached(self, tenant: TenantId, now: Instant) -> QuotaShortage | None:
        """Returns the limit that even the tenant's smallest possible request would exceed now."""
        path = self.paths.get(tenant)
        return None if path is None or path.has_room(_SMALLEST, now) else path.shortage(_SMALLEST, now)

    def reserve(self, ticket: Ticket, prompt_tokens: int, output_tokens: int, now: Instant) -> None:
        """Counts an admitted request at every level of its tenant's path."""
        path = self.paths.get(ticket.tenant)
        if path is None:
            return
        claim = self._claims[ticket.request_id] = _Claim(ticket, path.levels, now)
        for level in path.levels:
            level.open += claim.sequences
        for rate in path.requests:
            rate.use(1, now)
        tokens = _tokens(ticket, prompt_tokens, output_tokens)
        for rate in path.tokens:
            amount = min(tokens, rate.limit)
            claim.reserved.append((rate, amount, rate.use(amount, now)))

    def count_rejected(self, tenant: TenantId, now: Instant) -> None:
        """Counts a request that a gateway rejected.

        Levels where it does not fit are skipped, to avoid creating a debt.
        """
        path = self.paths.get(tenant)
        for rate in () if path is None else path.requests:
            if rate.fits(1, now):
                rate.use(1, now)

    def attempt_ended(self, request_id: RequestId, tokens: int, now: Instant) -> None:
        """Records the tokens that an attempt used, and settles the reservation if the request has ended."""
        claim = self._claims.get(request_id)
        if claim is None:
            return
        claim.used = tokens
        if claim.ended:
            self._settle(request_id, claim, now)

    def request_ended(self, request_id: RequestId, now: Instant, *, in_flight: bool) -> None:
        """Records that a request has ended. Its tokens stay reserved while an attempt is in flight."""
        claim = self._claims.get(request_id)
        if claim is None or claim.ended:
            return
        for level in claim.levels:
            level.open -= claim.sequences
            level.duration_ns = Duration(
                level.duration_ns + (now - claim.since - level.duration_ns) // _DURATION_SMOOTHING
            )
        claim.ended = True
        if not in_flight:
            self._settle(request_id, claim, now)

    def left(self, tenant: TenantId, now: Instant) -> LimitsLeft | None:
        """Returns the remaining limits for response headers, taken from the tightest level for each rate."""
        path = self.paths.get(tenant)
        if path is None or not (path.requests or path.tokens):
            return None
        return LimitsLeft(least_left(path.requests, now), least_left(path.tokens, now))

    # Handover between schedulers

    def counters(self, now: Instant) -> tuple[LimitCounter, ...]:
        """Returns the counters of tenants with current usage."""
        found: list[LimitCounter] = []
        for level in self._levels.values():
            requests = 0 if level.requests is None else level.requests.used(now)
            tokens = 0 if level.tokens is None else level.tokens.used(now)
            if requests or tokens:
                found.append(LimitCounter(level.tenant, requests, tokens, level.duration_ns))
        return tuple(found)

    def restore(self, counters: Iterable[LimitCounter], now: Instant) -> None:
        for each in counters:
            if (level := self._levels.get(each.tenant)) is not None:
                level.duration_ns = each.duration_ns
                for rate, used in ((level.requests, each.requests), (level.tokens, each.tokens)):
                    if rate is not None:
                        rate.restore(used, now)

    def adopt(
        self, ticket: Ticket, prompt_tokens: int, output_tokens: int, arrived: Instant, now: Instant, *, counted: bool
    ) -> None:
        """Counts a request that another scheduler admitted as open.

        If the snapshot does not include the request's usage (`counted` is false), the usage is counted too. If it does,
        no part of the reservation is returned later, because there is no way to know how much of it has drained.
        """
        path = self.paths.get(ticket.tenant)
        if path is None or ticket.request_id in self._claims:
            return
        if not counted:
            self.reserve(ticket, prompt_tokens, output_tokens, now)
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
        return [self._levels[name] for name in levels_of(tenant) if name in self._levels]


def _limits_of(
    name: TenantId, tenants: PersistentMap[TenantId, Tenant], throttles: Mapping[TenantId, Limits]
) -> Limits:
    """Returns the limits of one level that apply while its throttles are active."""
    tenant = tenants.get(name)
    limits = _NO_LIMITS if tenant is None else tenant.limits
    return stricter(limits, throttles[name]) if name in throttles else limits


def _changed(rate: LeakyBucket | None, limit: int | None, now: Instant, *, same_share: bool) -> LeakyBucket | None:
    if limit is None:
        return None
    if rate is None:
        return LeakyBucket(limit)
    if same_share:
        rate.change_limit(limit, now)
    else:
        rate.change_share(limit, now)
    return rate


def _tokens(ticket: Ticket, prompt_tokens: int, output_tokens: int) -> int:
    """Returns the tokens that a request is predicted to use. Embeddings and tensors have no output tokens."""
    return prompt_tokens if ticket.api in APIS_WITHOUT_OUTPUT else prompt_tokens + output_tokens


def _lasts_longer(one: QuotaShortage, other: QuotaShortage) -> bool:
    """Whether shortage `one` lasts longer than `other`. A shortage that never ends lasts longest."""
    return other.wait_ns is not None and (one.wait_ns is None or one.wait_ns > other.wait_ns)


def least_left(rates: list[LeakyBucket], now: Instant) -> RateLeft | None:
    """Returns the rate with the least left."""
    if not rates:
        return None
    if len(rates) == 1:
        remaining, used, limit = rates[0].left(now)
    else:
        remaining, used, limit = min(rate.left(now) for rate in rates)
    return RateLeft(limit, max(0, remaining), Duration(-(-used // (limit or 1))))
