"""Tests of `just nightly`."""

import json
from pathlib import Path

import pytest

from bench.nightly import PARTS, Bar, Part, Result, judged, last_object, main

pytestmark = pytest.mark.process


def part_printing(name: str, text: str, *bars: Bar, status: int = 0) -> Part:
    return Part(name, ("-c", f"print({text!r}); raise SystemExit({status})"), bars)


def test_last_line_has_every_bar_with_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        part_printing("quick", 'ready\n{"ratio": 1.5, "lost": 0}', Bar("ratio", most=2.0), Bar("lost", most=0)),
        part_printing("slow", '{"ratio": 0.9}', Bar("ratio", least=1.0)),
    ]

    assert main([], parts) == 1

    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {
        "quick.ratio": {"value": 1.5, "must": "<= 2", "met": True},
        "quick.lost": {"value": 0, "must": "<= 0", "met": True},
        "slow.ratio": {"value": 0.9, "must": ">= 1", "met": False},
    }
    assert [line.split() for line in lines if "MISSED" in line] == [["slow.ratio", "0.9", ">=", "1", "MISSED"]]


def test_one_part_is_run_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [part_printing("first", "{}"), part_printing("second", "{}")]

    assert main(["second"], parts) == 0

    assert list(json.loads(capsys.readouterr().out.splitlines()[-1])) == ["second.exit_status"]


def test_a_part_that_crashes_misses_its_bars_and_says_its_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], [part_printing("broken", "no figures", Bar("ratio", most=1.0), status=2)]) == 1

    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "broken.ratio": {"value": None, "must": "<= 1", "met": False},
        "broken.exit_status": {"value": 2, "must": "<= 0", "met": False},
    }


def test_a_missing_or_unusual_figure_misses_its_bar() -> None:
    bar = Bar("ratio", most=1.0)

    assert [judged(bar, figures).met for figures in ({}, {"ratio": None}, {"ratio": True}, {"ratio": "0.5"})] == [
        False
    ] * 4
    assert judged(bar, {"ratio": 1.0}) == Result(1.0, "<= 1", met=True)


def test_only_the_last_line_is_read() -> None:
    assert last_object('{"a": 1}\n{"b": 2}\n') == {"b": 2}
    assert last_object('{"a": 1}\ndone\n') == {}
    assert last_object("") == {}


def test_an_unknown_part_is_an_error_that_lists_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["relais"])
    assert "no part is called 'relais'; there are relay, attack" in capsys.readouterr().err


def test_every_benchmark_that_nightly_names_exists() -> None:
    modules = {part.command[1] for part in PARTS if part.command[1].startswith("bench.")}
    root = Path(__file__).parents[2]

    missing = [
        name
        for name in modules
        if not (root / f"{name.replace('.', '/')}.py").exists()
        and not (root / name.replace(".", "/") / "__main__.py").exists()
    ]
    assert missing == []
