"""Does what is installed hold anything that runs by itself, or anything but the package?

The LiteLLM release of 2026-03-24 came with a `.pth` file, which Python runs at every start. That every requirement is
pinned and hashed is shown by tests/house/test_requirements.py.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
RUN_BY_ITSELF = (".pth", "sitecustomize.py", "usercustomize.py", ".so", ".sh", ".exe", ".pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, timeout=200)
    [built] = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.mark.process
def test_a_wheel_holds_nothing_that_runs_by_itself(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith(RUN_BY_ITSELF)] == []


@pytest.mark.process
def test_a_wheel_holds_the_package_and_its_description_alone(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"headgate"}
    assert len(tops) == 2


@pytest.mark.process
def test_a_wheel_starts_nothing_but_its_own_command(wheel: zipfile.ZipFile) -> None:
    [entry_points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]

    assert wheel.read(entry_points).decode().split() == ["[console_scripts]", "headgate", "=", "headgate.cli.main:main"]


def test_what_is_shipped_runs_no_code_of_others() -> None:
    """No template engine, no evaluation, no unpickling, no shell; nothing that a request could reach."""
    forbidden = (
        "eval(",
        "exec(",
        "pickle",
        "marshal",
        "os.system",
        "shell=True",
        "yaml.load(",
        "jinja2",
        "__import__(",
    )
    sources = sorted((PROJECT / "src").rglob("*.py"))
    found = {
        (str(path.relative_to(PROJECT)), word)
        for path in sources
        for word in forbidden
        # Not as the end of a longer name: `create_subprocess_exec(` starts a program from a list of words.
        if re.search(rf"(?<!\w){re.escape(word)}", path.read_text())
    }

    assert len(sources) > 50
    assert found == set()
