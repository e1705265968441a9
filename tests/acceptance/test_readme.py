"""The README's quickstart works verbatim in a fresh directory with a real engine."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from testing.processes import ChildProcess
from testing.real_engines import llamacpp

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MISSED = "the checks did not finish within 2 s"
"""The doctor's message about an engine that stalled. In that case the commands are run a second time."""

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]


def block(language: str, containing: str) -> str:
    [found] = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in text]
    return found


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the repository and a new virtual environment, as a new user would have."""
    folder = tmp_path_factory.mktemp("newcomer")
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in names.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    venv.create(folder / "env", with_pip=True)
    path = f"{folder / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return folder, {**os.environ, "PATH": path, "VIRTUAL_ENV": str(folder / "env")}


def test_quickstart_streams_a_response_from_llamacpp(fresh: tuple[Path, dict[str, str]]) -> None:
    folder, environment = fresh
    commands = block("bash", "pip install .")
    # Stop the server after the last command.
    script = f"set -e\n{commands}\nkill $!; wait $! || true\n"
    with llamacpp(port=8081):
        run = outcome_of(["bash", "-c", script], folder, environment)
        if run.returncode != 0 and MISSED in run.stdout + run.stderr:
            (folder / "headgate.yaml").unlink(missing_ok=True)
            run = outcome_of(["bash", "-c", script], folder, environment)
        assert run.returncode == 0, run.stdout + run.stderr
        assert '"content":' in run.stdout
        assert run.stdout.rstrip().endswith("data: [DONE]")


def test_quickstart_has_five_commands() -> None:
    commands = block("bash", "pip install .").replace("\\\n", " ").strip().splitlines()
    assert len(commands) == 5


def test_python_example_prints_a_response(fresh: tuple[Path, dict[str, str]]) -> None:
    folder, _ = fresh
    command = [folder / "env" / "bin" / "headgate", "serve", "--config", folder / "headgate.yaml"]
    with llamacpp(port=8081), ChildProcess("headgate", command) as server:
        server.wait_until_ok("http://127.0.0.1:9090/ready", seconds_max=120)
        run = outcome_of([sys.executable, "-c", block("python", "OpenAI")])
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def outcome_of(
    command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=360, check=False
    )
