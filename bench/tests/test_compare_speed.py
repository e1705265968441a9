"""Tests for `just compare-speed`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.compare_speed.__main__ import gateway_sides, main, parser
from bench.compare_speed.measurements import Effort, measure_cell, measure_core
from bench.compare_speed.ratios import FIGURES, Costs, as_json, figures_of, ranks_cut, ratio_of, table_of
from bench.compare_speed.tree_worker import NameNotFound, found, method
from bench.compare_speed.trees import Tree, UnknownRevision, Worker, commit_of, other_tree
from bench.cpu_cores import Cores, family_of
from testing.processes import ProcessFailedError

ROOT = Path(__file__).parents[2]
SOURCE = Tree("here", ROOT, os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
SMALL = {"tenants": 4, "endpoints": 2, "queued": 50}


def costs_of(costs: Mapping[tuple[str, str], list[float]]) -> Costs:
    return Costs(dict(costs))


# Ratios


@pytest.mark.parametrize(("count", "cut"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5)])
def test_interval_for_median_has_textbook_ranks(count: int, cut: int) -> None:
    assert ranks_cut(count) == cut


def test_one_disturbed_pair_does_not_shift_the_median() -> None:
    ratio = ratio_of([0.9, 1.0, 1.1, 1.0, 1.0, 40.0, 1.0, 1.0, 1.0])

    assert (ratio.median, ratio.low, ratio.high, ratio.pairs) == (1.0, 1.0, 1.1, 9)


def test_figures_are_ratios_of_pairs() -> None:
    figures = as_json(
        figures_of(
            costs_of(
                {
                    ("request", "here"): [150.0, 300.0],
                    ("request", "there"): [100.0, 200.0],
                    ("request", "nginx"): [10.0, 20.0],
                    ("request", "envoy"): [50.0, 100.0],
                    ("core", "here"): [100.0],
                    ("core", "there"): [50.0],
                }
            )
        )
    )

    assert figures == {
        "request_ratio": 1.5,
        "request_ratio_pure": 1.5,
        "chunk_ratio": None,
        "core_ratio": 0.5,
        "cell_ratio": None,
        "request_over_nginx": 15.0,
        "chunk_over_nginx": None,
        "request_over_envoy": 3.0,
        "chunk_over_envoy": None,
    }


def test_uncompiled_build_has_its_own_ratio_if_measured() -> None:
    costs = costs_of({("request", "here"): [50.0], ("request", "pure"): [90.0], ("request", "there"): [100.0]})
    figures = as_json(figures_of(costs))

    assert (figures["request_ratio"], figures["request_ratio_pure"]) == (0.5, 0.9)


def test_table_shows_every_figure_and_its_interval() -> None:
    costs = costs_of({("chunk", "here"): [30.0] * 6, ("chunk", "there"): [40.0, 50.0, 60.0, 60.0, 60.0, 75.0]})
    table = table_of(costs, figures_of(costs))

    assert all(figure.name in table for figure in FIGURES)
    assert "0.500   0.400 to 0.750" in table
    assert table.count("skipped") == len(FIGURES) - 1


# Names in other trees


def test_name_is_found_under_older_name() -> None:
    assert found(("json:loads_of_another_version", "json:loads")) is json.loads
    assert found(("json.absent:loads", "absent.json:loads", "json:loads")) is json.loads
    assert method([], ("add", "append"))(1) is None


def test_missing_name_is_reported_with_next_step() -> None:
    with pytest.raises(NameNotFound, match=r"none of json:read; add its name to tree_worker\.py"):
        found(("json:read",))
    with pytest.raises(NameNotFound, match="list has none of add"):
        method([], ("add",))


# Command line


def test_gateway_of_uncompiled_build_is_measured_if_it_has_a_command() -> None:
    there = Tree("there", Path("other"), "")

    assert [side for side, _, _ in gateway_sides(SOURCE, there, ())] == ["here", "there"]
    assert gateway_sides(SOURCE, there, ["headgate-pure"])[2] == ("pure", SOURCE, ["headgate-pure"])


@pytest.mark.parametrize(
    "words", [["HEAD", "--pairs", "0"], ["HEAD", "--seconds", "0.1"], ["HEAD", "--skip", "nothing"]]
)
def test_invalid_options_are_rejected(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(words)


def test_worker_that_imports_another_checkout_is_rejected() -> None:
    SOURCE.check(str(ROOT / "src/headgate/__init__.py"))
    SOURCE.check("/venv/lib/python3.11/site-packages/headgate/__init__.py")
    with pytest.raises(ProcessFailedError, match="set PYTHONPATH"):
        SOURCE.check("/other/src/headgate/__init__.py")
    with pytest.raises(ProcessFailedError, match="set PYTHONPATH"):
        Tree("there", Path("/there"), "").check("/venv/lib/python3.11/site-packages/headgate/__init__.py")


# Trees and workers


@pytest.mark.process
def test_commit_is_checked_out_only_for_the_block() -> None:
    with other_tree("HEAD") as tree:
        assert (tree.root / "src" / "headgate" / "__init__.py").exists()
        assert tree.python_path.split(os.pathsep) == [str(tree.root / "src"), str(tree.root)]
    assert not tree.root.exists()
    assert str(tree.root) not in worktrees()


@pytest.mark.process
def test_unknown_commit_is_reported_or_replaced_by_head() -> None:
    with pytest.raises(UnknownRevision, match="no-such-commit is not a commit in this clone; run git fetch"):
        commit_of("no-such-commit", or_head=False)
    with pytest.raises(UnknownRevision):
        commit_of("--help", or_head=False)
    assert commit_of("no-such-commit", or_head=True) == commit_of("HEAD", or_head=False)


@pytest.mark.process
def test_unknown_commit_ends_the_command_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit", "--skip", "nginx", "--skip", "envoy"]) == 2
    assert "compare-speed: no-such-commit is not a commit" in capsys.readouterr().err


@pytest.mark.process
def test_both_schedulers_run_equally_many_slices() -> None:
    core = max(os.sched_getaffinity(0))
    effort = Effort(pairs=1, seconds=0.2, slice_requests=20, core_size=SMALL, cell_in_flight=100)
    costs, trees = Costs(), [SOURCE, Tree("there", ROOT, SOURCE.python_path)]
    measure_core(costs, trees, Cores(core, core), effort)
    measure_cell(costs, trees, Cores(core, core), effort)

    assert {key: len(each) for key, each in costs.of.items()} == {
        (load, side): 4 for load in ("core", "cell") for side in ("here", "there")
    }
    assert all(cost > 1 for each in costs.of.values() for cost in each)


@pytest.mark.process
def test_failed_worker_is_reported() -> None:
    with Worker(SOURCE, "core", {"core": max(os.sched_getaffinity(0))}) as worker:
        with pytest.raises(ProcessFailedError, match="the core worker of here exited with status 1"):
            worker.wait_until_ready()


@pytest.mark.process
def test_terminated_comparison_leaves_no_process_and_no_worktree() -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.compare_speed",
            "HEAD",
            "--pairs",
            "1",
            "--skip",
            "request",
            "--skip",
            "chunk",
            "--skip",
            "nginx",
            "--skip",
            "envoy",
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": SOURCE.python_path},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "starting the schedulers" in process.stderr.readline()
        root = tree_of_a_worker(process.pid)
        started = family_of(process.pid)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)

    assert (process.returncode, said) == (143, "")
    assert still_running(started) == []
    assert str(root) not in worktrees()
    assert not root.exists()


def still_running(pids: Sequence[int]) -> list[int]:
    """Return the processes still running after a minute. A worker interrupted at its start exits a little later."""
    give_up_at = time.monotonic() + 60
    while (left := [pid for pid in pids if "tree_worker" in command_of(pid)]) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return left


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def tree_of_a_worker(pid: int) -> Path:
    """Return the directory of the other tree, once a worker runs in it."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        for each in family_of(pid):
            with contextlib.suppress(OSError):
                directory = Path(f"/proc/{each}/cwd").readlink()
                if "headgate-compare-" in str(directory):
                    return directory
        time.sleep(0.02)
    raise AssertionError("no worker was started in the other tree")


def worktrees() -> str:
    return subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
