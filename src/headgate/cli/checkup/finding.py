"""What was found, how bad is it, and what is to be done about it?"""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """It works, but somebody should know."""
    PROBLEM = "problem"
    """It does not work, or will not under load."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    """The thing: a file, an endpoint, an address, a setting."""
    message: str
    next: str = ""
    """What to do; empty where nothing is to be done."""


def ok(about: str, message: str) -> Finding:
    return Finding(Level.OK, about, message)


def note(about: str, message: str, *, then: str) -> Finding:
    return Finding(Level.NOTE, about, message, then)


def problem(about: str, message: str, *, then: str) -> Finding:
    return Finding(Level.PROBLEM, about, message, then)
