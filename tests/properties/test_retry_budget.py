"""Property tests for retry budgets: exact, without unnecessary rejections."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.retry_budget import RetryBudget
from headgate.model.policy import RetryRules
from headgate.model.units import SECOND, Duration, Instant, PoolName, TenantId
from testing.builders import at

POOL = PoolName("p")
PART = SECOND
"""A tenth of the window, the margin by which the budget can be too strict."""

steps = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, SECOND // 3, SECOND - 1, SECOND, 3 * SECOND, 9 * SECOND]),
        st.integers(0, 12),
        st.integers(0, 3),
    ),
    max_size=40,
)


def within(moments: list[Instant], now: Instant, length: int) -> int:
    return sum(moment > now - length for moment in moments)


def take(budget: RetryBudget, tenant: str, pool: PoolName, now: Instant, *, after_silence: bool = False) -> bool:
    """Spends an extra attempt if the budgets allow it."""
    allowed = budget.allows(TenantId(tenant), pool, now, after_silence=after_silence)
    if allowed:
        budget.spend(TenantId(tenant), pool, now, after_silence=after_silence)
    return allowed


@given(steps, st.integers(0, 3))
def test_extra_attempts_for_a_pool_stay_within_a_fifth_or_the_minimum(
    steps: list[tuple[int, int, int]], always: int
) -> None:
    rules = RetryRules(pool_retries_min=always)
    budget, now = RetryBudget(rules), at(0)
    firsts, extras = list[Instant](), list[Instant]()
    for number, (later, begun, wanted) in enumerate(steps):
        now = Instant(now + later)
        for _ in range(begun):
            budget.first_attempt(TenantId("first"), POOL, now, client_retry=False)
            firsts.append(now)
        for each in range(wanted):
            if take(budget, f"t{number}.{each}", POOL, now):
                extras.append(now)
                taken = within(extras, now, rules.pool_budget_window_ns)
                assert taken <= always or 5 * taken <= within(firsts, now, rules.pool_budget_window_ns)
            else:
                wanted_at_most = 1 + within(extras, now, rules.pool_budget_window_ns + PART)
                assert wanted_at_most > always
                assert 5 * wanted_at_most > within(firsts, now, rules.pool_budget_window_ns - PART)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=200), st.integers(0, 3))
def test_extra_attempts_for_all_pools_stay_within_a_fifth_or_the_minimum(
    steps: list[tuple[int, bool]], always: int
) -> None:
    budget = RetryBudget(RetryRules(pool_retries_min=always))
    extras = 0
    for firsts, (pool, fails) in enumerate(steps, start=1):
        budget.first_attempt(TenantId("first"), PoolName(f"p{pool}"), at(0), client_retry=False)
        if fails and take(budget, f"t{firsts}", PoolName(f"p{pool}"), at(0)):
            extras += 1
            assert extras <= always or 5 * extras <= firsts


@given(st.lists(st.sampled_from(["first", "client retry", "failure", "silence"]), max_size=200))
def test_tenant_earns_a_tenth_of_a_retry_per_first_attempt(steps: list[str]) -> None:
    rules = RetryRules(credit_burst=450, pool_budget_percent=10**9)
    budget, credit = RetryBudget(rules), 450
    tenant = TenantId("acme")
    budget.first_attempt(TenantId("other"), POOL, at(0), client_retry=False)
    for step in steps:
        match step:
            case "first":
                budget.first_attempt(tenant, POOL, at(0), client_retry=False)
                credit = min(450, credit + 10)
            case "client retry":
                taken = budget.allows_for_tenant(tenant)
                assert taken == (credit >= 100)
                if taken:
                    budget.spend_for_tenant(tenant)
                credit -= 100 * taken
                budget.first_attempt(tenant, POOL, at(0), client_retry=True)
            case _:
                cost = 200 if step == "silence" else 100
                taken = take(budget, tenant, POOL, at(0), after_silence=step == "silence")
                assert taken == (credit >= cost)
                credit -= cost * taken


@given(st.integers(1, 10**12), st.lists(st.integers(0, 10**12), max_size=20))
def test_window_of_any_length_uses_limited_memory(length: int, steps: list[int]) -> None:
    budget, now = RetryBudget(RetryRules(pool_budget_window_ns=Duration(length))), at(0)
    for later in steps:
        now = Instant(now + later)
        budget.first_attempt(TenantId("acme"), POOL, now, client_retry=False)
        take(budget, "acme", POOL, now)

    window = budget._window(POOL)
    assert len(window._firsts) <= 11
    assert len(window._extras) <= 11
