"""Property tests for tenant limits: exact over any time span, without unnecessary rejections."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.admission.leaky_bucket import LeakyBucket
from headgate.core.admission.limits import TenantLimits, least_left
from headgate.model.limits import Limits, RateLeft
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MINUTE, SECOND, Duration, Instant, ModelName, RequestId, TenantId
from testing.builders import at

LATER = [0, 0, 0, 1, SECOND // 3, SECOND, 7 * SECOND, 20 * SECOND, MINUTE, 3 * MINUTE]


@dataclass
class Reservation:
    mark: int
    made: Instant
    reserved: int
    kept_parts: int
    """Amount that the reservation counts for: the reserved amount minus refunds, in the units that the rate uses."""


@dataclass
class Rated:
    """A rate and everything it has admitted."""

    limit: int
    rate: LeakyBucket = field(init=False)
    now: Instant = field(default_factory=lambda: at(0))
    open: list[Reservation] = field(default_factory=list[Reservation])
    let_in: list[Reservation] = field(default_factory=list[Reservation])
    debts: list[Reservation] = field(default_factory=list[Reservation])

    def __post_init__(self) -> None:
        self.rate = LeakyBucket(self.limit)

    def arrive(self, amount: int) -> None:
        wait = self.rate.wait_ns(amount, self.now)
        if wait:
            # The wait is exact to the nanosecond.
            assert self.rate.wait_ns(amount, Instant(self.now + wait)) == 0
            assert self.rate.wait_ns(amount, Instant(self.now + wait - 1)) == 1
            return
        made = Reservation(self.rate.use(amount, self.now), self.now, amount, amount * MINUTE)
        self.open.append(made)
        self.let_in.append(made)
        self.check_every_span()

    def settle(self, number: int, actual: int) -> None:
        if not self.open:
            return
        reservation = self.open.pop(number % len(self.open))
        before = self.rate.used(self.now)
        self.rate.settle(reservation.mark, self.now, reserved=reservation.reserved, actual=actual)
        back_parts = before - self.rate.used(self.now)
        if actual > reservation.reserved:
            self.debts.append(Reservation(0, self.now, 0, -back_parts))
        else:
            assert 0 <= back_parts <= (reservation.reserved - actual) * MINUTE
            reservation.kept_parts -= back_parts

    def check_every_span(self) -> None:
        """Admissions and debts since any earlier time are within the limit for that time span plus one minute."""
        for since in {each.made for each in self.let_in}:
            parts = sum(each.kept_parts for each in (*self.let_in, *self.debts) if each.made >= since)
            assert parts <= self.limit * (MINUTE + self.now - since)


rated_steps = st.lists(
    st.tuples(
        st.sampled_from(LATER),
        st.one_of(
            st.tuples(st.just("arrive"), st.sampled_from([1, 3, 10, 10]), st.just(0)),
            st.tuples(st.just("settle"), st.integers(0, 3), st.sampled_from([0, 0, 1, 5, 10, 30])),
        ),
    ),
    min_size=4,
    max_size=40,
)


@given(st.integers(1, 3), rated_steps)
def test_admissions_in_any_period_stay_within_the_limit_plus_one_minute(
    tenths: int, steps: list[tuple[int, tuple[str, int, int]]]
) -> None:
    rated = Rated(10 * tenths)
    for later, (what, first, second) in steps:
        rated.now = Instant(rated.now + later)
        if what == "arrive":
            rated.arrive(first * tenths)
        else:
            rated.settle(first, second * tenths)


@given(st.integers(1, 1_000), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=20))
def test_immediate_settlement_leaves_exactly_the_used_amount(limit: int, requests: list[tuple[int, int]]) -> None:
    rate, used = LeakyBucket(limit), 0
    for reserved, actual in requests:
        mark = rate.use(reserved, at(0))
        rate.settle(mark, at(0), reserved=reserved, actual=actual)
        used += actual

    assert least_left([rate], at(0)) == RateLeft(limit, max(0, limit - used), Duration(-(-used * MINUTE // limit)))


# Tenant paths

NAMES = ["acme", "acme/search", "acme/search/nightly", "acme/chat", "bolt"]
limits = st.builds(
    Limits,
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 3),
)
policies = st.lists(st.sampled_from(NAMES), unique=True).flatmap(
    lambda names: st.tuples(*[st.builds(Tenant, st.just(TenantId(name)), limits=limits) for name in names])
)
happenings = st.lists(
    st.tuples(
        st.sampled_from(LATER),
        st.one_of(
            st.tuples(st.just("arrive"), st.sampled_from(NAMES), st.integers(1, 70)),
            st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 90)),
            st.tuples(st.just("end in flight"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("attempt ends"), st.integers(0, 9), st.integers(0, 90)),
            st.tuples(st.just("policy"), policies, st.just(0)),
        ),
    ),
    max_size=40,
)


class Host:
    """Admits and ends requests, and counts the open ones independently."""

    def __init__(self) -> None:
        self.limits = TenantLimits()
        self.tenants: tuple[Tenant, ...] = ()
        self.now = at(0)
        self.open: list[Ticket] = []
        self.aborted: list[Ticket] = []
        self.count = 0

    def below(self, name: str) -> int:
        return sum(each.tenant == name or each.tenant.startswith(f"{name}/") for each in self.open)

    def change(self, tenants: tuple[Tenant, ...]) -> None:
        self.tenants = tenants
        self.limits.change_rules(tenant_table(tenants).by_id, {}, self.open, self.now)

    def arrive(self, name: str, prompt_tokens: int) -> None:
        if name not in [each.id for each in self.tenants]:
            return
        self.count += 1
        ticket = Ticket(RequestId(f"r{self.count}"), Api.CHAT, ModelName("m"), TenantId(name), True, 4)
        shortage = self.limits.shortage(ticket, prompt_tokens, 7, self.now)
        full = [
            each.id
            for each in self.tenants
            if (name == each.id or name.startswith(f"{each.id}/"))
            and each.limits.concurrency is not None
            and self.below(each.id) >= each.limits.concurrency
        ]
        if shortage is None:
            assert not full
            self.limits.reserve(ticket, prompt_tokens, 7, self.now)
            self.open.append(ticket)
        elif "concurrency" in shortage.reason:
            assert any(f'tenant "{each}"' in shortage.reason for each in full)

    def end(self, number: int, tokens: int | None) -> None:
        """Ends a request with this number of used tokens, or with None if its attempt is still in flight."""
        if not self.open:
            return
        ticket = self.open.pop(number % len(self.open))
        if tokens is not None:
            self.limits.attempt_ended(ticket.request_id, tokens, self.now)
        else:
            self.aborted.append(ticket)
        self.limits.request_ended(ticket.request_id, self.now, in_flight=tokens is None)

    def attempt_ends(self, number: int, tokens: int) -> None:
        if self.aborted:
            ticket = self.aborted.pop(number % len(self.aborted))
            self.limits.attempt_ended(ticket.request_id, tokens, self.now)

    def happens(self, what: str, first: object, second: int) -> None:
        match what, first:
            case "arrive", str(name):
                self.arrive(name, second)
            case "end", int(number):
                self.end(number, second)
            case "end in flight", int(number):
                self.end(number, None)
            case "attempt ends", int(number):
                self.attempt_ends(number, second)
            case _:
                assert isinstance(first, tuple)
                self.change(first)


@given(policies, happenings)
def test_concurrency_is_exact_and_released_when_requests_end(
    tenants: tuple[Tenant, ...], steps: list[tuple[int, tuple[str, object, int]]]
) -> None:
    host = Host()
    host.change(tenants)
    for later, (what, first, second) in steps:
        host.now = Instant(host.now + later)
        host.happens(what, first, second)
        for name, level in host.limits._levels.items():
            assert level.open == host.below(name)
    while host.open:
        host.end(0, 5)
    while host.aborted:
        host.attempt_ends(0, 5)

    assert host.limits._claims == {}
    assert all(level.open == 0 for level in host.limits._levels.values())
    # By this time all debts have been paid, even those of the longest responses at the lowest limit.
    idle = Instant(host.now + 10_000 * MINUTE)
    for tenant in host.tenants:
        left = host.limits.left(tenant.id, idle)
        for rate in (left.requests, left.tokens) if left is not None else ():
            assert rate is None or (rate.remaining, rate.reset_ns) == (rate.limit, 0)
