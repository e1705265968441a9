"""Tests of `just sim-cell`."""

import pytest

from bench import cell
from headgate.hosts.cell.leader import leader


def test_the_last_line_is_machine_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert cell.main(["3"]) == 0
    assert '{"seeds": 3, "violations": 0' in capsys.readouterr().out.splitlines()[-1]


def test_a_failing_seed_is_printed_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that is broken on purpose, so that a seed fails.
    monkeypatch.setattr(leader.Leader, "snapshot_written", lambda self, at, now: None)

    assert cell.main(["1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 1 at ")
    assert "run it again: just sim-cell --seed 1 --trace" in lines
    assert cell.main(["--seed", "1", "--trace"]) == 1
    assert "VIOLATION" in capsys.readouterr().out
