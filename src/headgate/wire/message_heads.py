"""Fields of chat messages that determine their turns.

They stay interpreted in the compiled build, because mypyc does not support `msgspec.Struct`.
"""

from typing import Final

import msgspec

_NULL: Final = msgspec.Raw(b"null")


class MessageHead(msgspec.Struct, gc=False):
    """Message fields that determine its turn."""

    role: str = ""
    tool_calls: msgspec.Raw = _NULL
    tool_call_id: msgspec.Raw = _NULL


class _ToolCall(msgspec.Struct, gc=False):
    id: msgspec.Raw = _NULL


HEADS: Final = msgspec.json.Decoder(list[MessageHead])
TOOL_CALLS: Final = msgspec.json.Decoder(list[_ToolCall])
