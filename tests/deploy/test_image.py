"""The script that builds and checks the container image. `just nightly image` runs it with a container engine."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.image.build import PIP_CONF, ImageError, build_arguments, version_tag
from scripts.image.check import expect, run_scenarios
from scripts.image.programs import inspect_image
from tests.deploy.test_containerfile import SECRET
from tests.house.small_tree import PROJECT


def arguments(base: str | None = None) -> list[str]:
    return build_arguments(
        "headgate:1.2.3", version="1.2.3", base=base, wheels=Path("/here/wheels"), pip_conf=Path("/here/pip.conf")
    )


def test_build_keeps_the_health_check_and_sets_the_version() -> None:
    given = arguments()

    assert given[given.index("--format") + 1] == "docker"
    assert "HEADGATE_VERSION=1.2.3" in given
    assert not [each for each in given if each.startswith(("PYTHON=", "--pull"))]


def test_version_of_a_commit_becomes_a_valid_tag() -> None:
    assert version_tag("0.2.0.dev14+g0123abcdef") == "0.2.0.dev14-g0123abcdef"


def test_build_replaces_the_base_image_without_pulling() -> None:
    assert arguments("base:local")[-4:] == ["--build-arg", "PYTHON=base:local", "--pull=never", "."]


def test_build_installs_downloaded_wheels_without_an_index() -> None:
    [mounted] = [each for each in arguments() if each.startswith("/here/wheels:")]
    [secret] = [each for each in arguments() if each.startswith("id=")]
    directory = mounted.split(":")[1]

    assert f"[global]\nno-index = true\nfind-links = {directory}\n" == PIP_CONF
    assert directory == str(inspect_image.MOUNT_POINT)
    assert secret == "id=pip_conf,src=/here/pip.conf"
    assert "id=pip_conf," in SECRET
    assert f"RUN {SECRET}" in (PROJECT / "deploy" / "Containerfile").read_text()


def test_all_scenarios_run_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    ran = []

    def fails() -> None:
        expect("user", "0:0", "10001:10001")

    failed = run_scenarios({"first": fails, "second": lambda: ran.append("second")})
    printed = capsys.readouterr()

    assert (failed, ran) == (1, ["second"])
    assert [line.split()[-2:] for line in printed.out.splitlines()] == [["FAILED", "first"], ["passed", "second"]]
    assert printed.err == "image: first: ImageError: user: '0:0' instead of '10001:10001'\n"


def test_expect_raises_only_on_a_mismatch() -> None:
    expect("user", "10001:10001", "10001:10001")
    with pytest.raises(ImageError, match="ports: 1 instead of 2"):
        expect("ports", 1, 2)


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """An installed package `half-broken`, with one module that can be imported and one that cannot."""
    (tmp_path / "whole_module.py").write_text("")
    (tmp_path / "broken_module.py").write_text("import missing_library_of_the_image")
    metadata = tmp_path / "half_broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: half_broken\nVersion: 1\n")
    (metadata / "top_level.txt").write_text("whole_module\nbroken_module\n")
    sys.path.append(str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    sys.modules.pop("whole_module", None)


def test_package_of_an_extra_that_cannot_be_imported_is_reported(package: Path) -> None:
    assert inspect_image.problems_of("half-broken") == ["broken_module: No module named 'missing_library_of_the_image'"]


def test_packages_of_all_extras_are_inspected() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[^A-Za-z0-9._-]", each)[0] for packages in extras.values() for each in packages}

    assert inspect_image.packages_of_extras() == sorted(names)


def test_package_of_an_extra_that_is_missing_is_reported() -> None:
    assert inspect_image.problems_of("no-such-package") == ["is not installed"]


def test_directories_that_are_writable_are_reported(tmp_path: Path) -> None:
    assert inspect_image.can_write(str(tmp_path))
    assert not inspect_image.can_write(str(tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []
