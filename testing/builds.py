"""Differences between the pure and compiled builds that affect tests."""

from headgate.build import BUILD

IS_COMPILED = BUILD == "compiled"

NEEDS_PURE_BUILD = (
    "copies or replaces objects of the scheduler, which compiled classes do not allow; "
    "tests/replay/test_builds.py compares the commands of both builds instead"
)
COUNTS_LINES = "counts executed lines or calls, which compiled code does not report"
REPLACES_A_METHOD = "replaces a method of a compiled class"
