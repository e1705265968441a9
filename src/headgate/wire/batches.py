"""What must be known of a kind of request so that several can be asked as one?

A *joinery* is one value that holds it: how a request is taken apart into inputs, how inputs become one request, how the
answer to that is taken apart again, and how the parts of one caller become its own answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headgate.wire.request import RequestBody

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""As much of one request's answer is held before it begins, or while it is not read."""


class Unshareable(Exception):
    """The answer to a batch cannot be told apart. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one request asks for."""

    key: bytes = field(repr=False)
    """Requests with the same may be asked together."""
    items: tuple[msgspec.Raw, ...] = field(repr=False)
    tokens: tuple[int, ...]
    """How long each is thought to be, in tokens; truly so where `counted`."""
    weights: tuple[int, ...]
    """What each counts when tokens of a batch are shared: its tokens where they are known, else its bytes."""
    counted: bool
    """Whether the inputs are token ids."""


@dataclass(frozen=True, slots=True)
class Part:
    """What an answer says of one input. Each joinery has a kind of its own."""

    estimated: bool
    """Whether usage was shared in proportion to bytes."""


class Gathering(Protocol):
    """One caller's answer on its way."""

    @property
    def over(self) -> bool:
        """Whether all of it has come."""
        ...

    @property
    def held(self) -> int:
        """How many bytes have come that cannot be passed on before others have."""
        ...

    def take(self, place: int, part: Part) -> bytes:
        """What can be passed on, this part having come. Raises `Unshareable` where too much would have to be held."""
        ...


@dataclass(frozen=True, slots=True)
class Joinery:
    inputs_of: Callable[[RequestBody], Inputs | None]
    """The inputs one by one; None where the request is to go as it came."""
    joined: Callable[[RequestBody, Sequence[msgspec.Raw], int], RequestBody]
    """One request for all these inputs of so many callers, which otherwise says what the first of them says."""
    parts_of: Callable[[bytes | bytearray, Sequence[int], bool], Sequence[Part]]
    """The answer to inputs with these weights, input by input. Raises `Unshareable`."""
    gathering: Callable[[int], Gathering]
    """For a caller with so many inputs."""
    answer_bytes_max: int
    """A longer answer is not taken apart: that would hold up every other stream."""
