"""Differences between the pure and compiled builds that affect tests."""

from headgate.build import BUILD

IS_COMPILED = BUILD == "compiled"

NEEDS_PURE_BUILD = (
    "copies or replaces objects of the scheduler, which compiled classes do not allow; "
    "tests/replay/test_builds.py compares the commands of both builds instead"
)
