"""Tests for `just sim-cell`."""

import pytest

from bench import cell_faults
from headgate.hosts.cell.leader import leader


def test_last_output_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cell_faults.main(["3"]) == 0
    assert '{"seeds": 3, "violations": 0' in capsys.readouterr().out.splitlines()[-1]


def test_failing_seed_is_printed_with_command_to_reproduce_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Break the leader on purpose, so that a seed fails.
    monkeypatch.setattr(leader.Leader, "snapshot_stored", lambda self, at, now: None)

    assert cell_faults.main(["1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 1 at ")
    assert "To reproduce: just sim-cell --seed 1 --trace" in lines
    assert cell_faults.main(["--seed", "1", "--trace"]) == 1
    assert "VIOLATION" in capsys.readouterr().out
