"""Tests for the `headgate engine` command."""

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from headgate.cli.engine import PROFILES as NAMES
from headgate.cli.main import main
from headgate.model.engine_profile import PROFILES
from headgate.simulation.server.record import read_record
from testing.ports import free_port
from testing.processes import ChildProcess


def test_command_line_offers_every_profile() -> None:
    assert sorted(NAMES) == sorted(PROFILES)


@pytest.mark.process
def test_engine_runs_as_a_process(tmp_path: Path) -> None:
    port, record = free_port(), tmp_path / "record.jsonl"
    command = [sys.executable, "-m", "headgate.cli.main", "engine", "--profile", "tiny", "--model", "small"]
    command += ["--port", str(port), "--record", str(record), "--output-tokens-median", "5", "--seed", "3"]
    url = f"http://127.0.0.1:{port}"
    with ChildProcess("engine", command, None) as process:
        process.wait_until_ok(f"{url}/health", seconds_max=30)
        body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "hi"}]}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", data=body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = json.load(answer)
        process.terminate()
        process.wait_until_ended()

        assert process.exit_status == 0
    assert said["usage"]["completion_tokens"] == read_record(record)[0]["output_tokens"]


def test_port_in_use_exits_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code = main(["engine", "--port", str(taken.getsockname()[1])])

    assert code == 1
    assert "choose another port with --port" in capsys.readouterr().err
