"""Findings from `headgate doctor`, each with a level and a next step."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """The setup works, but needs attention."""
    PROBLEM = "problem"
    """The setup does not work, or will fail under load."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    level: Level
    about: str
    """Subject: a file, an endpoint, an address or a setting."""
    message: str
    next_step: str = ""
    """Next step; empty if none is needed."""


def ok(about: str, message: str) -> CheckFinding:
    return CheckFinding(Level.OK, about, message)


def note(about: str, message: str, *, next_step: str) -> CheckFinding:
    return CheckFinding(Level.NOTE, about, message, next_step)


def problem(about: str, message: str, *, next_step: str) -> CheckFinding:
    return CheckFinding(Level.PROBLEM, about, message, next_step)
