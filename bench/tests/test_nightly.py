"""Tests for `just nightly`."""

import json
from collections.abc import Sequence

import pytest

from bench.nightly import COMPILED_TESTS, PARTS, ROOT, Part, Result, Threshold, check, last_object, main

pytestmark = pytest.mark.process


def part_printing(name: str, text: str, *bars: Threshold, status: int = 0) -> Part:
    return Part(name, ("-c", f"print({text!r}); raise SystemExit({status})"), bars)


def test_nightly_prints_every_target_on_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        part_printing(
            "quick", 'ready\n{"ratio": 1.5, "lost": 0}', Threshold("ratio", most=2.0), Threshold("lost", most=0)
        ),
        part_printing("slow", '{"ratio": 0.9}', Threshold("ratio", least=1.0)),
    ]

    assert main([], parts) == 1

    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {
        "quick.ratio": {"value": 1.5, "must": "<= 2", "met": True},
        "quick.lost": {"value": 0, "must": "<= 0", "met": True},
        "slow.ratio": {"value": 0.9, "must": ">= 1", "met": False},
    }
    assert [line.split() for line in lines if "MISSED" in line] == [["slow.ratio", "0.9", ">=", "1", "MISSED"]]


def test_nightly_runs_only_named_part(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [part_printing("first", "{}"), part_printing("second", "{}")]

    assert main(["second"], parts) == 0

    assert list(json.loads(capsys.readouterr().out.splitlines()[-1])) == ["second.exit_status"]


def test_crashed_part_misses_targets_and_reports_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], [part_printing("broken", "no figures", Threshold("ratio", most=1.0), status=2)]) == 1

    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "broken.ratio": {"value": None, "must": "<= 1", "met": False},
        "broken.exit_status": {"value": 2, "must": "<= 0", "met": False},
    }


def test_missing_or_non_numeric_figure_counts_as_missed_target() -> None:
    bar = Threshold("ratio", most=1.0)

    assert [check(bar, figures).met for figures in ({}, {"ratio": None}, {"ratio": True}, {"ratio": "0.5"})] == [
        False
    ] * 4
    assert check(bar, {"ratio": 1.0}) == Result(1.0, "<= 1", met=True)


def test_last_object_reads_only_last_line() -> None:
    assert last_object('{"a": 1}\n{"b": 2}\n') == {"b": 2}
    assert last_object('{"a": 1}\ndone\n') == {}
    assert last_object("") == {}


def test_unknown_part_error_lists_parts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["relais"])
    assert "unknown part 'relais'; choose from relay, attack" in capsys.readouterr().err


def test_list_prints_the_command_for_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"], [part_printing("quick", "{}")]) == 0

    assert capsys.readouterr().out.split()[:3] == ["quick", "python", "-c"]


def test_nightly_benchmarks_exist() -> None:
    modules = {part.command[1] for part in PARTS if part.command[1].startswith("bench.")}

    missing = [
        name
        for name in modules
        if not (ROOT / f"{name.replace('.', '/')}.py").exists()
        and not (ROOT / name.replace(".", "/") / "__main__.py").exists()
    ]
    assert missing == []


def test_nightly_run_covers_all_directories_that_ci_tests_on_the_compiled_build() -> None:
    gateway, processes = recipe("test-compiled-gateway"), recipe("test-compiled-processes")
    [part] = [part for part in PARTS if part.name == "compiled-tests"]
    nightly = folders_in(part.command)

    assert '"not process and' in gateway
    assert '"process and' in processes
    assert folders_in(gateway.split()) == nightly == {f"tests/{name}" for name in COMPILED_TESTS}
    files = folders_in(processes.split())
    assert {"/".join(file.split("/")[:2]) for file in files} <= nightly
    assert [file for file in files if "pytest.mark.process" not in (ROOT / file).read_text()] == []


def recipe(name: str) -> str:
    return (ROOT / "justfile").read_text().partition(f"\n{name} *args:\n")[2].partition("\n\n")[0]


def folders_in(words: Sequence[str]) -> set[str]:
    return {word for word in words if word.startswith("tests/")}
