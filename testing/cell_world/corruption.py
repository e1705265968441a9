"""Invalid entries derived from valid ones.

`with_damaged_bytes` damages bytes as a foreign writer would; most results cannot be decoded. `with_false_content` keeps
the structure of an entry and changes its content: it alters numbers, names and flags, and repeats, drops, swaps and
moves messages.
"""

from random import Random
from typing import Any

import msgspec

_NUMBERS = (0, 1, -1, 2, 7, 255, 2**31, 2**40, 2**52, 2**62, 2**63 - 1, -(2**62))
_NAMES = ("", "g0", "g1", "s0", "r1", "r2", "r3", "r7", "e0", "e1", "p", "m", "open", "nobody", "x" * 2_000)


def with_damaged_bytes(written: bytes, random: Random) -> bytes:
    """The same bytes, some of them changed, removed or repeated."""
    changed = bytearray(written)
    for _ in range(random.choice((1, 1, 2, 8))):
        place = random.randrange(len(changed))
        match random.randrange(4):
            case 0:
                changed[place] ^= 1 << random.randrange(8)
            case 1:
                changed[place] = random.randrange(256)
            case 2:
                del changed[place : place + random.randrange(1, 9)]
            case _:
                changed[place:place] = changed[place : place + random.randrange(1, 9)]
        if not changed:
            return b""
    return bytes(changed)


def with_false_content(written: bytes, random: Random, *, head: bool = True) -> bytes:
    """An entry with the same structure and different content. The head changes only if `head` is true."""
    said_head, messages = msgspec.msgpack.decode(written)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if messages and random.random() < 0.8:
            _falsify_messages(messages, random)
        elif head:
            _change_one(said_head, random)
    return msgspec.msgpack.encode((said_head, messages))


def of_version(written: bytes, version: int) -> bytes:
    """The same entry or snapshot as another version would write it, with a field unknown to this version."""
    said = msgspec.msgpack.decode(written)
    head = said[0] if isinstance(said, list) else said
    head |= {"version": version, "of another version": 1}
    return msgspec.msgpack.encode(said)


def version_of(written: bytes) -> int:
    said = msgspec.msgpack.decode(written)
    return (said[0] if isinstance(said, list) else said)["version"]


def _falsify_messages(messages: list[Any], random: Random) -> None:
    place = random.randrange(len(messages))
    match random.randrange(6):
        case 0:
            messages.insert(random.randrange(len(messages) + 1), messages[place])
        case 1:
            del messages[place]
        case 2:
            other = random.randrange(len(messages))
            messages[place], messages[other] = messages[other], messages[place]
        case 3:
            messages[place][1] = random.choice([each[1] for each in messages])
        case _:
            _change_one(messages[place][2], random)


def _change_one(said: Any, random: Random) -> None:
    """Change one value at a random position in the structure."""
    while isinstance(said, dict | list) and said:
        key = random.choice(list(said) if isinstance(said, dict) else range(len(said)))
        if isinstance(said[key], dict | list) and said[key] and random.random() < 0.9:
            said = said[key]
            continue
        said[key] = _other_value(said[key], random)
        return


def _other_value(value: Any, random: Random) -> Any:
    if random.random() < 0.1:
        return None
    match value:
        case bool():
            return not value
        case int():
            return random.choice((*_NUMBERS, value + 1, value - 1, value + 1_000_000_000))
        case str():
            return random.choice(_NAMES)
        case bytes():
            return value[1:]
        case _:
            return random.choice((None, 0, "", [], {}))
