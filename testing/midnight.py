"""Guard for tests that must not run across midnight, when a day, a month or a budget period ends."""

import time

DAY_S = 86_400
MARGIN_S = 120.0
"""Maximum duration of such a test, in seconds."""


def wait_past_midnight() -> None:
    """Return immediately, or after midnight (UTC) if the day ends in less than `MARGIN_S`."""
    left_s = DAY_S - time.time() % DAY_S
    if left_s < MARGIN_S:
        time.sleep(left_s + 0.1)
