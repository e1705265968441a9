"""The wheel and the source archive contain only the intended files, and no files that run automatically.

The LiteLLM release of 2026-03-24 contained a `.pth` file, which Python runs every time it starts.
tests/house/test_requirements.py checks that every requirement is pinned and hashed.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SERVED = (".html", ".css")
RUN_BY_ITSELF = (".pth", "sitecustomize.py", "usercustomize.py", ".so", ".sh", ".exe", ".pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel")))


def built(target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, timeout=200)
    [path] = folder.iterdir()
    return path


@pytest.mark.process
def test_wheel_contains_no_file_that_runs_automatically(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith(RUN_BY_ITSELF)] == []


@pytest.mark.process
def test_wheel_contains_only_the_package_and_its_metadata(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"headgate"}
    assert len(tops) == 2


@pytest.mark.process
def test_wheel_contains_the_documentation_pages(wheel: zipfile.ZipFile) -> None:
    pages = PROJECT / "src" / "headgate" / "edge" / "pages"
    written = {path.relative_to(PROJECT / "src").as_posix() for path in pages.rglob("*") if path.suffix in SERVED}

    assert len(written) > 100
    assert written <= set(wheel.namelist())


@pytest.mark.process
def test_wheel_defines_only_the_headgate_command(wheel: zipfile.ZipFile) -> None:
    [entry_points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]

    assert wheel.read(entry_points).decode().split() == ["[console_scripts]", "headgate", "=", "headgate.cli.main:main"]


@pytest.mark.process
def test_source_archive_contains_only_the_package_and_the_listed_top_level_files(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    # The build backend adds these to every source archive.
    added = {".gitignore", "PKG-INFO", "pyproject.toml"}
    included = {
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "THIRD-PARTY-LICENSES.txt",
        "hatch_build.py",
        "scenarios",
        "src",
    }

    assert {name.partition("/")[0] for name in names} == included | added
    assert {name.split("/")[1] for name in names if name.startswith("src/")} == {"headgate"}
    sources = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / "src" / "headgate").rglob("*.py")}
    assert sources <= set(names)
    assert [name for name in names if name.endswith(RUN_BY_ITSELF)] == []


def test_source_does_not_execute_foreign_code() -> None:
    """The source uses no template engine, evaluation, unpickling or shell that a request could reach."""
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
        # Ignore longer names such as `create_subprocess_exec(`, which starts a program from an argument list.
        if re.search(rf"(?<!\w){re.escape(word)}", path.read_text())
    }

    assert len(sources) > 50
    assert found == set()
