"""Chat templates for text models behind Triton.

Such a model takes a single text and has no chat template. Only the operator knows which template the model was trained
with, so the model configuration selects one of the templates below (`generate.py`). A template is a few fixed markers
around each message. Custom templates are not supported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from headgate.wire.fields import BadRequest

ROLES: Final = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Text before and after each message. `{role}` is replaced by the role."""

    opening: str
    closing: str
    start: str = ""
    """Text before the first message."""
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role names that differ from those in the API."""


PLAIN: Final = "plain"
CHAT_TEMPLATES: Final[Mapping[str, ChatTemplate]] = MappingProxyType(
    {
        PLAIN: ChatTemplate("{role}: ", "\n\n", roles={"system": "System", "user": "User", "assistant": "Assistant"}),
        "chatml": ChatTemplate("<|im_start|>{role}\n", "<|im_end|>\n"),
        "llama3": ChatTemplate(
            "<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>", start="<|begin_of_text|>"
        ),
    }
)


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, msgspec.Raw]] | None = None


class _TextPart(msgspec.Struct):
    type: str
    text: str = ""


def render(turns: Sequence[ChatMessage], form: ChatTemplate) -> str:
    """Renders a conversation up to the start of the assistant's next message. Raises `BadRequest`."""
    pieces = [form.start]
    for turn in turns:
        if turn.role not in ROLES:
            wrong = f"this model supports the roles {', '.join(ROLES)}"
            raise BadRequest(f'{wrong}, not "{turn.role}"', "messages", log_message=wrong)
        pieces += [_opening(form, turn.role), _text(turn.content), form.closing]
    return "".join([*pieces, _opening(form, "assistant").rstrip(" ")])


def _opening(form: ChatTemplate, role: str) -> str:
    # "developer" is the newer name for "system".
    plain = "system" if role == "developer" else role
    return form.opening.format(role=form.roles.get(plain, plain))


def _text(content: str | list[dict[str, msgspec.Raw]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part) for part in content)


def _part(part: dict[str, msgspec.Raw]) -> str:
    try:
        found = msgspec.json.decode(msgspec.json.encode(part), type=_TextPart)
    except msgspec.DecodeError:
        raise BadRequest("each message part must have a type, and its text must be a string", "messages") from None
    if found.type != "text":
        wrong = "this model supports only text parts"
        raise BadRequest(f'{wrong}, not "{found.type[:40]}"', "messages", log_message=wrong)
    return found.text
