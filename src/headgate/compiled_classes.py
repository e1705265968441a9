"""Additions to compiled classes, called by the code that hatch_build.py generates. The source never calls them."""

from dataclasses import fields
from typing import Any


def complete_class(cls: Any, annotations: dict[str, str]) -> None:
    """Add to a class what its compiled form lacks: complete annotations, which msgspec needs, and `__reduce__`."""
    cls.__annotations__ = annotations
    if hasattr(cls, "__dataclass_fields__"):
        cls.__reduce__ = _reduce


def _reduce(self: Any) -> tuple[Any, ...]:
    return _create, (type(self), {each.name: getattr(self, each.name) for each in fields(self)})


def _create(cls: type, values: dict[str, Any]) -> object:
    return cls(**values)
