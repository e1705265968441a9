"""Keeps a test within one day, for tests in which a day, a month or a budget must not end."""

import time

DAY_S = 86_400
MARGIN_S = 120.0
"""Time that such a test may take."""


def pass_midnight() -> None:
    """Return at once, or after midnight (UTC) if the day ends in less than `MARGIN_S`."""
    left_s = DAY_S - time.time() % DAY_S
    if left_s < MARGIN_S:
        time.sleep(left_s + 0.1)
