"""What a process may send to a process that runs an earlier protocol version.

Every head states its sender's version. It stays the same for the whole session, because a process that is replaced
starts a new one. The newer side of a session adapts to the older one:

- A field that the older side does not know needs no entry here, because the older side ignores it.
- A kind of message that the older side does not know must not be sent to it. It would reject the entry, end the session
  and, after the third such session, fence the member. `KINDS_SINCE` lists such kinds.
- A new value of an enumeration, or a number beyond the older side's limits, has the same effect. Whoever adds one
  replaces it for older versions where the message is created. `tests/hosts/cell/protocol/test_versions.py` fails
  otherwise.
"""

from collections.abc import Mapping
from typing import Final

from headgate.hosts.cell.protocol.messages import CellVersion, FromMember, FromScheduler

KINDS_SINCE: Final[Mapping[type, int]] = {CellVersion: 4}
"""First protocol version that knows each kind. Kinds that are not listed are older than version 4."""


def is_readable(message: FromMember | FromScheduler, version: int) -> bool:
    """Returns whether a process of this version knows the kind of this message."""
    return KINDS_SINCE.get(type(message), 0) <= version
