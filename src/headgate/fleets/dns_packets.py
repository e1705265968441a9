"""How is a name server asked, in bytes, and what does its answer say?

Only what finding endpoints needs: questions for addresses and for services, and the records that answer them. A packet
from the network is somebody else's word: whatever it holds, reading it ends in records or in `Malformed`.
"""

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

ANSWER_BYTES_MAX: Final = 4096
"""How long an answer may be over UDP; longer ones are asked for over TCP."""
LABEL_BYTES_MAX: Final = 63
NAME_BYTES_MAX: Final = 253
_JUMPS_MAX: Final = 32
_POINTER: Final = 0xC0
_INTERNET: Final = 1
_OPT: Final = 41
_RECURSE: Final = 0x0100
_IS_ANSWER: Final = 0x8000
_TRUNCATED: Final = 0x0200
_NXDOMAIN: Final = 3


class Kind(IntEnum):
    A = 1
    AAAA = 28
    SRV = 33


class Malformed(Exception):
    """The packet is no answer to our question. The message says why."""


class Refused(Exception):
    """The server says that it cannot tell. The message says how."""


class Truncated(Exception):
    """The answer is longer than fits; it is to be asked for over TCP."""


@dataclass(frozen=True, slots=True)
class Address:
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    priority: int
    port: int
    target: str


Record = Address | Service


def question(name: str, kind: Kind, *, number: int) -> bytes:
    """Raises `ValueError` where the name cannot be asked for."""
    head = struct.pack("!6H", number, _RECURSE, 1, 0, 0, 1)
    # The second part says how long an answer we take.
    return (
        head
        + _encoded(name)
        + struct.pack("!2H", kind, _INTERNET)
        + b"\0"
        + struct.pack("!2HIH", _OPT, ANSWER_BYTES_MAX, 0, 0)
    )


def records(packet: bytes, name: str, kind: Kind, *, number: int) -> tuple[list[Record], list[Record]]:
    """What answers the question, and what was told beside it. No answer at all where the name does not exist."""
    try:
        return _records(packet, name, kind, number)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed("the answer breaks off or holds what no answer may") from error


def _records(packet: bytes, name: str, kind: Kind, number: int) -> tuple[list[Record], list[Record]]:
    said_number, flags, questions, answers, authorities, additional = struct.unpack_from("!6H", packet)
    if said_number != number or not flags & _IS_ANSWER:
        raise Malformed("it is not the answer to our question")
    if flags & _TRUNCATED:
        raise Truncated
    reply = flags & 0xF
    if reply not in (0, _NXDOMAIN):
        raise Refused(f"the name server answers with error {reply}")
    at = 12
    for _ in range(questions):
        asked, at = _name(packet, at)
        (asked_kind,) = struct.unpack_from("!H", packet, at)
        at += 4
        if (asked, asked_kind) != (_normal(name), kind):
            raise Malformed("it is the answer to another question")
    told: list[Record] = []
    beside: list[Record] = []
    for index in range(answers + authorities + additional):
        record, at = _record(packet, at)
        if record is not None:
            (told if index < answers else beside).append(record)
    return told, beside


def _record(packet: bytes, at: int) -> tuple[Record | None, int]:
    """One record, and where the next begins; None for what is of no use here."""
    owner, at = _name(packet, at)
    kind, network, _, length = struct.unpack_from("!2HIH", packet, at)
    at += 10
    data, end = packet[at : at + length], at + length
    if end > len(packet):
        raise Malformed("a record is longer than its packet")
    if network != _INTERNET:
        return None, end
    if kind == Kind.A and length == 4:
        return Address(owner, str(ipaddress.IPv4Address(data))), end
    if kind == Kind.AAAA and length == 16:
        return Address(owner, str(ipaddress.IPv6Address(data))), end
    if kind == Kind.SRV:
        priority, _, port = struct.unpack_from("!3H", data)
        target, _ = _name(packet, at + 6)
        return Service(owner, priority, port, target), end
    return None, end


def _encoded(name: str) -> bytes:
    labels = [label.encode("ascii") for label in _normal(name).split(".")]
    if not all(0 < len(label) <= LABEL_BYTES_MAX for label in labels) or len(name) > NAME_BYTES_MAX:
        raise ValueError(f"{name!r} is no name that can be asked for")
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _normal(name: str) -> str:
    return name.rstrip(".").lower()


def _name(packet: bytes, at: int) -> tuple[str, int]:
    """The name that begins there, and where what follows it begins. It may go on elsewhere, and not for ever."""
    labels: list[str] = []
    after: int | None = None
    for _ in range(_JUMPS_MAX + NAME_BYTES_MAX):
        length = packet[at]
        if length & _POINTER == _POINTER:
            after = at + 2 if after is None else after
            at = (length & ~_POINTER) << 8 | packet[at + 1]
        elif length:
            label = packet[at + 1 : at + 1 + length]
            if length > LABEL_BYTES_MAX or len(label) < length:
                raise Malformed("a name breaks off")
            labels.append(label.decode("ascii").lower())
            at += 1 + length
        else:
            return ".".join(labels), at + 1 if after is None else after
    raise Malformed("a name goes round in circles")
