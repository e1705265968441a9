"""The version comes from git tags, and wheels and source archives carry it."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hatch_build import project_version
from headgate import __version__

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which 1.3.0 is being prepared."""
    monkeypatch.delenv("HEADGATE_VERSION", raising=False)
    package = tmp_path / "src" / "headgate" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text('__version__ = "1.3.0.dev0"\n')
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "src")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "tag.gpgSign=false"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def commit(root: Path) -> str:
    """Add a commit and return the first digits of its hash."""
    git(root, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message", "change")
    return git(root, "rev-parse", "--short=10", "HEAD")


@pytest.mark.process
@pytest.mark.parametrize("released", ["1.3.0", "1.3.0rc1"])
def test_tagged_commit_has_the_version_of_its_tag(checkout: Path, released: str) -> None:
    git(checkout, "tag", f"v{released}")
    git(checkout, "tag", "other-tag")

    assert project_version(checkout) == released


@pytest.mark.process
def test_commit_after_a_tag_has_the_prepared_version_with_distance_and_hash(checkout: Path) -> None:
    git(checkout, "tag", "--annotate", "v1.2.0", "--message", "release")
    commit(checkout)
    latest = commit(checkout)

    assert project_version(checkout) == f"1.3.0.dev2+g{latest}"


@pytest.mark.process
def test_modified_files_of_a_tagged_commit_are_no_release(checkout: Path) -> None:
    git(checkout, "tag", "v1.3.0")
    (checkout / "src" / "headgate" / "__init__.py").write_text('__version__ = "1.4.0.dev0"\n')

    latest = git(checkout, "rev-parse", "--short=10", "HEAD")
    assert project_version(checkout) == f"1.4.0.dev0+g{latest}.dirty"


@pytest.mark.process
def test_commit_without_a_tag_before_it_has_only_the_hash(checkout: Path) -> None:
    assert project_version(checkout) == f"1.3.0.dev0+g{git(checkout, 'rev-parse', '--short=10', 'HEAD')}"


@pytest.mark.process
def test_files_in_the_repository_of_another_project_do_not_take_its_version(checkout: Path) -> None:
    git(checkout, "tag", "v9.9.9")
    inner = checkout / "vendored"
    (inner / "src" / "headgate").mkdir(parents=True)
    (inner / "src" / "headgate" / "__init__.py").write_text('__version__ = "1.3.0.dev0"\n')

    assert project_version(inner) == "1.3.0.dev0"


@pytest.mark.process
def test_damaged_repository_leaves_the_version_of_the_source(checkout: Path) -> None:
    (checkout / ".git" / "HEAD").unlink()

    assert project_version(checkout) == "1.3.0.dev0"


def test_environment_replaces_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_VERSION", "2.0.0")

    assert project_version(tmp_path) == "2.0.0"


def test_source_names_the_version_that_is_being_prepared() -> None:
    assert __version__.endswith(".dev0")


def build(target: str, source: Path, folder: Path, **environment: str) -> Path:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder]
    subprocess.run(command, cwd=source, env=inherited | environment, check=True, capture_output=True)
    [path] = folder.iterdir()
    return path


@pytest.mark.process
def test_wheel_from_a_source_archive_has_and_reports_the_version_of_the_archive(tmp_path: Path) -> None:
    archive = build("sdist", PROJECT, tmp_path / "sdist", HEADGATE_VERSION="1.3.0rc1")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "source", filter="data")
    wheel = build("wheel", tmp_path / "source" / "headgate-1.3.0rc1", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")

    command = [sys.executable, "-m", "headgate.cli.main", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)

    assert wheel.name == "headgate-1.3.0rc1-py3-none-any.whl"
    assert run.stdout == "headgate 1.3.0rc1 (pure Python)\n"
