"""A section of the configuration file."""

from typing import ClassVar

from msgspec import Struct


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    SHORTHAND: ClassVar[str | None] = None
