"""How does a gateway start, and what does it say when it cannot?"""

import resource
import subprocess
import sys
from pathlib import Path

import yaml

from testing.gateway import a_config, gateway_process
from testing.ports import free_port
from testing.processes import ChildProcess

SERVE = (sys.executable, "-m", "headgate.cli.main", "serve")


def serve(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SERVE, *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=False)


def test_without_a_file_it_says_how_to_get_one(tmp_path: Path) -> None:
    run = serve(tmp_path)

    assert run.returncode == 1
    assert "`headgate init`" in run.stderr
    assert run.stdout == ""


def test_a_wrong_file_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "headgate.yaml").write_text(yaml.safe_dump(a_config("http://127.0.0.1:1") | {"heath": {}}))
    run = serve(tmp_path)

    assert run.returncode == 1
    assert 'did you mean "health"?' in run.stderr
    assert "not started" in run.stderr


def test_an_address_in_use_is_named_with_the_next_step(tmp_path: Path) -> None:
    config = a_config(f"http://127.0.0.1:{free_port()}")
    (tmp_path / "first").mkdir()
    with gateway_process(config, tmp_path / "first"):
        (tmp_path / "headgate.yaml").write_text(yaml.safe_dump(config))
        run = serve(tmp_path)

    assert run.returncode == 1
    assert f"cannot listen on {config['listen']}" in run.stderr
    assert "choose another address" in run.stderr


def test_it_takes_as_many_open_files_as_it_may(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = a_config(f"http://127.0.0.1:{free_port()}")
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
