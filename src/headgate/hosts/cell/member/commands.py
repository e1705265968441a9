"""Commands from a member to its process."""

from headgate.core.commands import Abort, Dispatch, End
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.model.message import message
from headgate.model.money import Bill, NanoUsd
from headgate.model.units import RequestId


@message
class ModeChanged:
    """The member has changed its mode. An island must probe the engines itself."""

    mode: MemberMode
    reason: str


@message
class PolicyAgreed:
    """The process must apply the policy with this hash, which it has staged."""

    hash: str


@message
class BillsReceived:
    """Bills of a request that the member ended itself."""

    request_id: RequestId
    bills: tuple[Bill, ...]
    reserved: NanoUsd


MemberCommand = Dispatch | Abort | End | BillsReceived | ModeChanged | PolicyAgreed
"""Command for the command channel of a request, or for the host."""
