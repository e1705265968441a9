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
from dataclasses import replace
from typing import Final

from headgate.hosts.cell.protocol.messages import (
    CellVersion,
    FromMember,
    FromScheduler,
    NewRequest,
    QueuedRequest,
    RunningAttempt,
    SettledRequest,
)
from headgate.model.ticket import Api, Ticket

KINDS_SINCE: Final[Mapping[type, int]] = {CellVersion: 4}
"""First protocol version that knows each kind. Kinds that are not listed are older than version 4."""
APIS_SINCE: Final[Mapping[Api, tuple[int, Api]]] = {
    Api.MESSAGES: (4, Api.CHAT),
    Api.COUNT_TOKENS: (4, Api.EMBEDDINGS),
    Api.RERANK: (4, Api.EMBEDDINGS),
    Api.SCORE: (4, Api.EMBEDDINGS),
    Api.CLASSIFY: (4, Api.EMBEDDINGS),
    Api.POOLING: (4, Api.EMBEDDINGS),
    Api.TOKENIZE: (4, Api.EMBEDDINGS),
    Api.DETOKENIZE: (4, Api.EMBEDDINGS),
    Api.TRANSCRIPTIONS: (4, Api.EMBEDDINGS),
    Api.TRANSLATIONS: (4, Api.EMBEDDINGS),
}
"""First protocol version that knows each API, and the API that earlier versions schedule in the same way."""


def is_readable(message: FromMember | FromScheduler, version: int) -> bool:
    """Returns whether a process of this version knows the kind of this message."""
    return KINDS_SINCE.get(type(message), 0) <= version


def with_known_api(message: FromMember, version: int) -> FromMember:
    """Returns a message whose ticket names an API that a scheduler of this version knows."""
    match message:
        case NewRequest():
            return replace(message, ticket=_with_known_api(message.ticket, version))
        case QueuedRequest():
            report = replace(message.report, ticket=_with_known_api(message.report.ticket, version))
            return replace(message, report=report)
        case RunningAttempt():
            running = replace(message.report, ticket=_with_known_api(message.report.ticket, version))
            return replace(message, report=running)
        case SettledRequest():
            settled = replace(message.report, ticket=_with_known_api(message.report.ticket, version))
            return replace(message, report=settled)
        case _:
            return message


def _with_known_api(ticket: Ticket, version: int) -> Ticket:
    since, similar = APIS_SINCE.get(ticket.api, (0, ticket.api))
    return ticket if since <= version else replace(ticket, api=similar)
