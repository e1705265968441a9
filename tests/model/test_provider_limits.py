"""Rate limits that hosted providers report."""

import pytest

from headgate.model.provider_limits import LEFT_MAX, WAIT_NS_MAX, ProviderLimits
from headgate.model.units import MILLISECOND, SECOND, Duration


def test_aged_limits_have_less_time_left() -> None:
    limits = ProviderLimits(3, Duration(2 * SECOND), 100, SECOND, Duration(5 * SECOND))

    assert limits.aged(SECOND) == ProviderLimits(3, SECOND, 100, Duration(0), Duration(4 * SECOND))


def test_rejection_is_still_known_after_its_wait() -> None:
    assert ProviderLimits(blocked_ns=SECOND).aged(Duration(9 * SECOND)).blocked_ns == MILLISECOND
    assert ProviderLimits().aged(SECOND).blocked_ns == 0


@pytest.mark.parametrize(
    ("limits", "valid"),
    [
        (ProviderLimits(), True),
        (ProviderLimits(LEFT_MAX, WAIT_NS_MAX, LEFT_MAX, WAIT_NS_MAX, WAIT_NS_MAX), True),
        (ProviderLimits(-1), False),
        (ProviderLimits(tokens_left=LEFT_MAX + 1), False),
        (ProviderLimits(blocked_ns=Duration(WAIT_NS_MAX + 1)), False),
        (ProviderLimits(requests_reset_ns=Duration(-1)), False),
    ],
)
def test_only_values_within_their_bounds_are_valid(limits: ProviderLimits, *, valid: bool) -> None:
    assert limits.valid is valid
