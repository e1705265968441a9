"""All requirements are pinned and hashed, and no lock file contains an index address."""

import re
import tomllib

import pytest

from scripts.release.requirement_files import requirement_lines
from tests.house.small_tree import PROJECT

LOCKS = sorted(path.name for path in (PROJECT / "requirements").glob("*.txt"))
DIRECT_DEPENDENCIES_MAX = 8
TOTAL_DEPENDENCIES_MAX = 40

REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[a-z,]+\])?==(?P<version>[^\s;]+)")


def requirements_of(lock: str) -> list[str]:
    return requirement_lines((PROJECT / "requirements" / lock).read_text())


def direct_dependencies() -> list[str]:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_base_and_dev_lock_files_exist() -> None:
    assert {"base.txt", "dev.txt"} <= set(LOCKS)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_and_hashed(lock: str) -> None:
    loose = [line for line in requirements_of(lock) if not (REQUIREMENT.match(line) and "--hash=sha256:" in line)]

    assert loose == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_file_contains_no_index_address(lock: str) -> None:
    text = (PROJECT / "requirements" / lock).read_text()

    assert re.findall(r".*(?:://|--index|--extra-index|--find-links|--trusted-host).*", text) == []


def test_base_install_has_few_dependencies() -> None:
    assert len(direct_dependencies()) <= DIRECT_DEPENDENCIES_MAX
    assert len(requirements_of("base.txt")) <= TOTAL_DEPENDENCIES_MAX


def test_base_lock_contains_direct_dependencies() -> None:
    asked = {re.split(r"[^A-Za-z0-9._-]", each)[0].lower() for each in direct_dependencies()}
    locked = {found["name"].lower() for line in requirements_of("base.txt") if (found := REQUIREMENT.match(line))}

    assert asked <= locked


def test_image_lock_contains_every_extra() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {re.split(r"[^A-Za-z0-9._-]", each)[0].lower() for packages in extras.values() for each in packages}
    locked = {found["name"].lower() for line in requirements_of("image.txt") if (found := REQUIREMENT.match(line))}

    assert wanted <= locked


def test_dev_lock_uses_the_base_versions() -> None:
    def versions(lock: str) -> dict[str, str]:
        return {m["name"]: m["version"] for line in requirements_of(lock) if (m := REQUIREMENT.match(line))}

    shipped, used = versions("base.txt"), versions("dev.txt")

    assert {name: used[name] for name in used if name in shipped} == {
        name: shipped[name] for name in shipped if name in used
    }
