"""How does a conversation become one text?

A model behind Triton takes text and has no template of its own to put turns into. Which form its training knows only
its operator can say, so it is named with the model (`kserve_generate.py`), by one of the names below. There are no
templates to be written by anybody: a form is a few fixed marks around each turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from headgate.wire.fields import BadRequest

ROLES: Final = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatForm:
    """What stands around each turn; `{role}` stands for who speaks."""

    opening: str
    closing: str
    start: str = ""
    """Before the first turn."""
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    """How a form calls a role otherwise than the wire does."""


PLAIN: Final = "plain"
FORMS: Final[Mapping[str, ChatForm]] = MappingProxyType(
    {
        PLAIN: ChatForm("{role}: ", "\n\n", roles={"system": "System", "user": "User", "assistant": "Assistant"}),
        "chatml": ChatForm("<|im_start|>{role}\n", "<|im_end|>\n"),
        "llama3": ChatForm("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>", start="<|begin_of_text|>"),
    }
)


class Turn(msgspec.Struct):
    role: str
    content: str | list[dict[str, msgspec.Raw]] | None = None


class _TextPart(msgspec.Struct):
    type: str
    text: str = ""


def render(turns: Sequence[Turn], form: ChatForm) -> str:
    """The text that ends where the assistant is to speak. Raises `BadRequest` for what is no text."""
    pieces = [form.start]
    for turn in turns:
        if turn.role not in ROLES:
            wrong = f"this model takes turns of {', '.join(ROLES)}"
            raise BadRequest(f'{wrong}, not of "{turn.role}"', "messages", kept=wrong)
        pieces += [_opening(form, turn.role), _text(turn.content), form.closing]
    return "".join([*pieces, _opening(form, "assistant").rstrip(" ")])


def _opening(form: ChatForm, role: str) -> str:
    # A developer's turn is the newer name of a system's.
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
        raise BadRequest("a part of a message has no type, or a text that is none", "messages") from None
    if found.type != "text":
        wrong = "this model takes text"
        raise BadRequest(f'{wrong}, no part of type "{found.type[:40]}"', "messages", kept=wrong)
    return found.text
