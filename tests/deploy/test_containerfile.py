"""The Containerfile passes a linter, and its build steps produce a working gateway.

The tests do not require a container engine. They run the RUN lines of the build stage in a temporary directory and then
run the result as an unprivileged user without write access.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import __version__
from tests.deploy.containerfile import FILE, all_of, steps
from tests.deploy.manifests import KUBERNETES, gateway_config, the
from tests.house.small_tree import BIN, PROJECT

NOBODY = 10001
SECRET = "--mount=type=secret,id=pip_conf,target=/etc/pip.conf "
"""Optional pip configuration of the build."""


@pytest.mark.process
def test_containerfile_passes_the_linter() -> None:
    done = subprocess.run([BIN / "hadolint", FILE], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_image_user_is_unprivileged_and_matches_the_deployment() -> None:
    _, last = steps()
    pod = the("Deployment", "headgate").pod["securityContext"]

    assert all_of(last, "USER") == [f"{NOBODY}:{NOBODY}"]
    assert (pod["runAsUser"], pod["runAsGroup"]) == (NOBODY, NOBODY)


def test_image_contains_no_build_tools() -> None:
    first, last = steps()

    assert "--without-pip /venv" in all_of(first, "RUN")[0]
    assert all_of(last, "COPY") == ["--from=build /venv /venv"]
    assert all_of(last, "RUN")[0].startswith("python -m pip uninstall --yes setuptools wheel pip")


def test_image_ports_and_command_match_the_deployment() -> None:
    _, last = steps()
    gateway = the("Deployment", "headgate")
    [exposed], [command] = all_of(last, "EXPOSE"), all_of(last, "CMD")
    ports = [port["containerPort"] for port in gateway.container["ports"]]

    assert [int(port) for port in exposed.split()] == ports
    assert json.loads(command) == gateway.container["args"]
    assert all_of(last, "ENTRYPOINT") == ['["headgate"]']


def test_health_check_uses_the_admin_listener() -> None:
    _, last = steps()
    [health] = all_of(last, "HEALTHCHECK")
    port = gateway_config()["admin_listen"].rpartition(":")[2]

    assert f"http://127.0.0.1:{port}/health" in health


def test_build_context_contains_only_copied_files() -> None:
    first, _ = steps()
    lets_in = [
        line[1:] for line in (FILE.parent / "Containerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    copied = [name for line in all_of(first, "COPY") for name in line.split()[:-1]]

    assert all((PROJECT / name).exists() for name in copied)
    assert {"requirements/*.txt" if name.startswith("requirements/") else name for name in copied} == set(lets_in)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Temporary directory that other users can read, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="headgate-image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.endurance
@pytest.mark.timeout(600)
def test_build_steps_produce_a_gateway_that_runs_unprivileged(folder: Path) -> None:
    run_build_steps(folder)
    shutil.copy(KUBERNETES / "headgate.yaml", folder)
    headgate, python = folder / "venv/bin/headgate", folder / "venv/bin/python"

    version = as_nobody(headgate, "--version")
    check = as_nobody(headgate, "check", "--config", folder / "headgate.yaml")
    grpc = as_nobody(python, "-c", "import headgate.fleets.keda.scaler")
    pip = as_nobody(python, "-m", "pip", "--version")

    assert (version.returncode, version.stdout.split()[1]) == (0, __version__), version.stderr
    assert check.returncode == 0, check.stderr
    assert grpc.returncode == 0, grpc.stderr
    assert "No module named pip" in pip.stderr


def run_build_steps(image: Path) -> None:
    """Run the first build stage with this directory as the root of the image."""
    first, _ = steps()
    build, tools = image / "build", image / "tools"
    build.mkdir()
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    environment = {**os.environ, "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    for step in first:
        if step.word == "COPY":
            *names, into = step.rest.split()
            copy(names, build / into)
        elif step.word == "RUN":
            line = (
                step.rest.removeprefix(SECRET).replace("/venv", f"{image}/venv").replace("/wheels", f"{image}/wheels")
            )
            done = subprocess.run(
                ["sh", "-ec", line], cwd=build, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr


def copy(names: list[str], into: Path) -> None:
    for name in names:
        found = PROJECT / name
        if found.is_dir():
            shutil.copytree(found, into, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            into.mkdir(exist_ok=True)
            shutil.copy(found, into)


def as_nobody(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a command as the image's user, who has no home directory and no write access.

    The command runs as the current user if that user is not root.
    """
    becoming = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HEADGATE_KEY_SECRET": "x" * 43,
        "ENGINE_KEY": "y",
    }
    words = [*(becoming if os.geteuid() == 0 else []), *command]
    return subprocess.run(words, cwd="/", env=environment, capture_output=True, text=True, check=False)
