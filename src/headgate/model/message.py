"""Decorator for immutable messages between the scheduler and its hosts.

The type checker enforces immutability. Freezing messages at run time would have a measurable cost: each request creates
several messages, and every field of a frozen dataclass makes it slower to create.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Message = TypeVar("_Message")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[_Message]) -> type[_Message]:
    return dataclass(slots=True, unsafe_hash=True)(cls)
