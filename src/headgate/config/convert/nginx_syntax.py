"""Parser for the syntax of nginx configuration files: directives with arguments, and blocks of directives."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final, NamedTuple

from headgate.config.convert.source import SourceFile
from headgate.model.units import MILLISECOND, MINUTE, SECOND

NESTING_MAX: Final = 32

# A word ends at whitespace, a semicolon or an opening brace, except for the brace of a variable such as ${host}.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    | (?P<sign>[{};])
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | '(?P<single>(?:[^'\\]|\\.)*)'
    | (?P<word>(?:\\.|\$\{|[^\s{};"'\\])(?:\\.|\$\{|[^\s{;\\])*)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n"}
_TIME: Final = re.compile(r"(?:[0-9]{1,9}(?:ms|[smhdwMy]))+|[0-9]{1,9}")
_TIME_PART: Final = re.compile(r"([0-9]+)(ms|[smhdwMy]?)")
_SIZE: Final = re.compile(r"([0-9]{1,15})([kKmMgG]?)")
_RATE: Final = re.compile(r"([0-9]{1,9})r/([sm])")
_DAY: Final = 24 * 60 * MINUTE
_TIME_UNITS: Final = {
    "": SECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": 60 * MINUTE,
    "d": _DAY,
    "w": 7 * _DAY,
    "M": 30 * _DAY,
    "y": 365 * _DAY,
}


class Directive(NamedTuple):
    name: str
    arguments: tuple[str, ...]
    line: int
    block: "list[Directive] | None" = None

    def first(self) -> str:
        return self.arguments[0] if self.arguments else ""


class _Token(NamedTuple):
    line: int
    sign: str
    """A brace or semicolon; empty for a word."""
    word: str = ""


def parse_directives(text: str, file: SourceFile) -> list[Directive]:
    """Raises `ConversionError`."""
    blocks: list[list[Directive]] = [[]]
    opened: list[int] = []
    words: list[str] = []
    first_line = 1
    for token in _tokens(text, file):
        if not token.sign:
            first_line = first_line if words else token.line
            words.append(token.word)
        elif token.sign == "}":
            if words or not opened:
                raise file.error(token.line, "", 'has an unexpected "}"')
            blocks.pop()
            opened.pop()
        else:
            if not words:
                raise file.error(token.line, "", f'has a "{token.sign}" without a directive')
            block: list[Directive] | None = [] if token.sign == "{" else None
            blocks[-1].append(Directive(words[0], tuple(words[1:]), first_line, block))
            words = []
            if block is not None:
                if len(opened) >= NESTING_MAX:
                    raise file.error(token.line, "", f"has more than {NESTING_MAX} nested blocks")
                blocks.append(block)
                opened.append(first_line)
    if words:
        raise file.error(first_line, "", 'has a directive without ";"')
    if opened:
        raise file.error(opened[-1], "", "has a block that is not closed")
    return blocks[0]


def _tokens(text: str, file: SourceFile) -> Iterator[_Token]:
    position, line, name = 0, 1, ""
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise file.error(line, "", "has a string that is not closed")
        position = found.end()
        match found.lastgroup:
            case "sign":
                yield _Token(line, found[0])
                if found[0] == "{" and name.endswith("_by_lua_block"):
                    # Lua code has its own syntax.
                    end = _end_of_code(text, position)
                    line, position = line + text.count("\n", position, end), end
                    yield _Token(line, "}")
                name = ""
            case "double" | "single" as kind:
                yield _Token(line, "", _unescaped(found[kind]))
            case "word":
                name = name or found[0]
                yield _Token(line, "", _unescaped(found[0]))
            case _:
                pass
        line += found[0].count("\n")


def _end_of_code(text: str, start: int) -> int:
    """Position after the brace that closes a block of Lua code."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.end()
    return len(text)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)


def nginx_time(text: str) -> int | None:
    """Nanoseconds; None if the text is not a time."""
    if not _TIME.fullmatch(text):
        return None
    return sum(int(number) * _TIME_UNITS[unit] for number, unit in _TIME_PART.findall(text))


def nginx_size(text: str) -> int | None:
    """Bytes; None if the text is not a size."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[found[2].lower()]


def requests_per_minute(text: str) -> Decimal | None:
    found = _RATE.fullmatch(text)
    return None if found is None else Decimal(found[1]) * (60 if found[2] == "s" else 1)
