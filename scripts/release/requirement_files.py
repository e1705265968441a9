"""Parser for the hash-pinned files in requirements/, as `just lock` writes them."""

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]

_PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>.*?))?(?: --hash=|$)")
_SOURCE_OF_DIRECT_REQUIREMENTS = re.compile(r"^-r |^headgate \(")


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str
    version: str
    marker: str
    """Environment marker; empty if the package is always installed."""
    hashes: tuple[str, ...]
    """SHA-256 of every file of this version that may be installed."""
    required_by: tuple[str, ...]
    """Names of the packages that depend on it."""
    is_direct: bool
    """Whether Headgate itself depends on it."""


def requirement_lines(text: str) -> list[str]:
    """Return each requirement as one line, without comments."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [line.strip() for line in code.replace("\\\n", " ").splitlines() if line.strip()]


def read_requirements(lock: str, checkout: Path = PROJECT) -> list[Requirement]:
    """Return the requirements in a file of requirements/, for example base.txt."""
    text = (checkout / "requirements" / lock).read_text()
    blocks = re.split(r"^(?=[A-Za-z0-9])", re.sub(r"\A(#.*\n)+", "", text), flags=re.MULTILINE)
    return [_requirement(block) for block in blocks if block]


def _requirement(block: str) -> Requirement:
    [line] = requirement_lines(block)
    found = _PINNED.match(" ".join(line.split()))
    assert found, f"no pinned requirement: {line[:80]}"
    comments = [each.strip().lstrip("#").strip() for each in block.splitlines() if each.lstrip().startswith("#")]
    users = [each.removeprefix("via").strip() for each in comments]
    return Requirement(
        name=found["name"],
        version=found["version"],
        marker=found["marker"] or "",
        hashes=tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)),
        required_by=tuple(each for each in users if re.fullmatch(r"[A-Za-z0-9._-]+", each) and each[0] != "-"),
        is_direct=any(_SOURCE_OF_DIRECT_REQUIREMENTS.match(each) for each in users),
    )
