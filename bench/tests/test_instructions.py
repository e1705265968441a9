"""Tests for the instruction counter: units, results and budget. CI runs the counter itself."""

import ast
from pathlib import Path

import pytest

from bench.instructions.__main__ import CHUNKS_FEW, CHUNKS_MANY, Step, beyond_budget, main, per_piece, table
from bench.instructions.counter import OUTSIDE, TOTAL, compile_counter, phase_counts
from bench.instructions.units import qualified_names, units

DUMPS = """\
desc: Trigger: Client Request: phase 2
fn=(1) main
1 5
totals: 1200
part: 2
desc: Trigger: Client Request: phase 1000000
1 7
totals: 34000
desc: Trigger: Program termination
totals: 9
"""


def test_counts_are_read_in_the_order_of_their_phases() -> None:
    assert phase_counts(DUMPS) == [(2, 1200), (1_000_000, 34_000)]


@pytest.mark.process
def test_counter_compiles(tmp_path: Path) -> None:
    assert compile_counter(tmp_path).stat().st_size > 0


def test_units_of_a_package_cover_all_packages() -> None:
    found = units("package", "")

    assert (found["core/"], found["model/"], found["ledger/"]) == ("core", "core", "other")


def test_units_of_files_and_functions_can_be_limited_to_a_path() -> None:
    assert units("file", "core/retry_budget") == {"core/retry_budget.py:": "core/retry_budget.py"}
    assert units("function", "core/retry_budget")["core/retry_budget.py:RetryBudget.first_attempt;"] == (
        "core/retry_budget.py RetryBudget.first_attempt"
    )


def test_nested_functions_belong_to_the_function_that_contains_them() -> None:
    tree = ast.parse("def a():\n  def b(): ...\nclass C:\n  async def d(self): ...\nif x:\n  def e(): ...")

    assert list(qualified_names(tree)) == ["a", "C.d", "e"]


def test_cost_of_a_chunk_is_the_difference_between_a_long_and_a_short_stream() -> None:
    costs = {
        Step("warm-up", OUTSIDE): 1,
        Step("request", 2): 500,
        Step("few", 2): 4_000,
        Step("many", 2): 4_000 + 100 * (CHUNKS_MANY - CHUNKS_FEW),
        Step("request", TOTAL): 700,
        Step("few", TOTAL): 9_000,
        Step("many", TOTAL): 9_000 + 200 * (CHUNKS_MANY - CHUNKS_FEW),
    }

    counts = per_piece(costs, {OUTSIDE: "event loop", 2: "core", TOTAL: "total"}, 10)
    assert counts == {"request": {"core": 50, "total": 70}, "chunk": {"core": 100, "total": 200}}
    assert "100.0%" in table(counts)


def test_counts_above_and_below_the_budget_are_reported() -> None:
    exempt = {"hosts": 10, "event loop": 5_000}
    budget = {"request": {"core": 10_000, "edge": 10_000, "wire": 10_000, "renamed": 5_000, **exempt}}

    exempt = {"hosts": 20, "event loop": 6_000, "new": 5_000}
    counts = {"request": {"core": 10_299, "edge": 10_301, "wire": 9_699, **exempt}}
    assert beyond_budget(counts, budget) == [
        "edge: 10,301 instructions per request; the budget is 10,000",
        "wire: 9,699 instructions per request; the budget is 10,000",
        "renamed: 0 instructions per request; the budget is 5,000",
    ]


@pytest.mark.parametrize("option", ["--ledger", "--threads"])
def test_budget_applies_only_to_the_main_thread_without_a_ledger(option: str) -> None:
    with pytest.raises(SystemExit):
        main(["--assert", option])
