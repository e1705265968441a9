"""Parser for deploy/Containerfile."""

import re
from dataclasses import dataclass

from tests.deploy.manifests import DEPLOY

FILE = DEPLOY / "Containerfile"


@dataclass(frozen=True)
class Step:
    word: str
    rest: str


def steps() -> list[list[Step]]:
    """Return the instructions in each build stage, excluding those before the first stage."""
    code = "\n".join(line for line in FILE.read_text().splitlines() if not line.startswith("#"))
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]
    found = [Step(*re.split(r"\s+", line, maxsplit=1)) for line in lines]
    stages: list[list[Step]] = []
    for step in found:
        if step.word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(step)
    return stages


def all_of(stage: list[Step], word: str) -> list[str]:
    return [re.sub(r"\s+", " ", step.rest).strip() for step in stage if step.word == word]
