"""How `headgate serve` starts, and its errors."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headgate.edge.listener import bind
from testing.gateway import a_config, gateway_process
from testing.processes import ChildProcess
from tests.cli.conftest import Headgate

SERVE = (sys.executable, "-m", "headgate.cli.main", "serve")
NOWHERE = "http://127.0.0.1:1"


def test_missing_file_is_reported_with_next_step(headgate: Headgate) -> None:
    said = headgate("serve")

    assert (said.code, said.out) == (1, "")
    assert "`headgate init`" in said.err


def test_invalid_file_is_not_served(headgate: Headgate, file: Path) -> None:
    file.write_text(yaml.safe_dump(a_config(NOWHERE) | {"heath": {}}))
    said = headgate("serve")

    assert said.code == 1
    assert 'did you mean "health"?' in said.err
    assert "not started" in said.err


@pytest.mark.process
def test_address_in_use_is_reported_with_next_step(file: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        config = a_config(NOWHERE, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        file.write_text(yaml.safe_dump(config))
        run = subprocess.run(SERVE, cwd=file.parent, capture_output=True, text=True, timeout=110, check=False)

    assert run.returncode == 1
    assert f"cannot listen on {config['listen']}" in run.stderr
    assert "choose another address" in run.stderr


@pytest.mark.process
def test_open_file_limit_is_raised(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = a_config(NOWHERE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        with gateway_process(config, tmp_path) as process:
            assert limit_of(process) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limit_of(process: ChildProcess) -> int:
    limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    [line] = [line for line in limits if line.startswith("Max open files")]
    return int(line.split()[3])
