"""What does a member ask its process to do?"""

from headgate.core.commands import Abort, Dispatch, End
from headgate.hosts.cell.protocol.views import Mode
from headgate.model.message import message
from headgate.model.money import Bill, NanoUsd
from headgate.model.units import RequestId


@message
class ModeChanged:
    """Whom this process goes by from here on. An island looks at the engines itself."""

    mode: Mode
    reason: str


@message
class PolicyAgreed:
    """The rules of this hash, which this process has said that it has read, are to be gone by from here on."""

    hash: str


@message
class Billed:
    """What a request has cost that this member had ended by itself."""

    request_id: RequestId
    bills: tuple[Bill, ...]
    reserved: NanoUsd


Order = Dispatch | Abort | End | Billed | ModeChanged | PolicyAgreed
"""What is to be done here: by the line of a request, or by the host."""
