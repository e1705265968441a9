"""How does a verb ask a running gateway to change something?

By its admin listener, with the operator's key from the environment: a key on the command line would stand in the
history of the shell and in the list of processes.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.cli.status import admin_url

VARIABLE = "HEADGATE_ADMIN_KEY"
_ANSWER_S_MAX = 15.0
_LENGTHS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class NotDone(Exception):
    """The message says why, and the next step."""


def add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("headgate.yaml"), metavar="FILE", help="its configuration")
    parser.add_argument("--url", help="its admin listener, such as http://127.0.0.1:9090, instead of the file's")
    parser.add_argument("--json", action="store_true", help="print what the gateway said as it is")


def length_s(text: str) -> int:
    """A length of time such as 90s, 15m, 12h or 30d."""
    number, unit = text[:-1], text[-1:]
    if unit not in _LENGTHS or not (number.isascii() and number.isdigit()) or not int(number):
        raise argparse.ArgumentTypeError(
            f'"{text}" is no length of time; write a number with s, m, h or d, such as 12h'
        )
    return int(number) * _LENGTHS[unit]


def ask(
    args: argparse.Namespace, path: str, body: Mapping[str, object], *, answer_s_max: float = _ANSWER_S_MAX
) -> dict[str, Any]:
    """What the gateway answers. Raises `NotDone`."""
    url = admin_url(args.url, args.config)
    if url is None:
        raise NotDone("")
    key = os.environ.get(VARIABLE)
    if not key:
        raise NotDone(
            f"no operator key is set; `export {VARIABLE}=$(headgate keys operator --write)` creates one and writes its "
            "hash into the configuration (then SIGHUP the gateway)"
        )
    import asyncio

    given = {name: value for name, value in body.items() if value is not None}
    return asyncio.run(_asked(f"{url}/admin/v1/{path}", given, key, answer_s_max))


async def _asked(url: str, body: Mapping[str, object], key: str, answer_s_max: float) -> dict[str, Any]:
    import aiohttp

    timeout, place = aiohttp.ClientTimeout(total=answer_s_max), url.partition("/admin/")[0]
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            headers = {"authorization": f"Bearer {key}"}
            async with session.post(url, json=body, headers=headers, allow_redirects=False) as answer:
                status, said = answer.status, await answer.read()
    except TimeoutError:
        what = f"the gateway at {place} did not answer within {answer_s_max:.0f} s"
        raise NotDone(f"{what}; look at its log, and whether its database answers") from None
    except (aiohttp.ClientError, OSError) as error:
        why = f"no gateway answers at {place}: {error}"
        raise NotDone(f"{why}; start one, or name its admin listener by --url") from None
    return _read(status, said)


def _read(status: int, said: bytes) -> dict[str, Any]:
    import msgspec

    try:
        answer = msgspec.json.decode(said, type=dict[str, Any])
    except msgspec.DecodeError:
        no_keys = "its configuration has no admin_keys; run `headgate keys operator --write`, then SIGHUP the gateway"
        hint = no_keys if status == 404 else "is this its admin listener?"
        raise NotDone(f"the gateway has no such interface (status {status}); {hint}") from None
    if status != 200:
        error: dict[str, Any] = answer.get("error", {})
        raise NotDone(str(error.get("message", f"the gateway answered with status {status}; look at its log")))
    return answer


def show_json(answer: Mapping[str, object]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """The named columns of each row, those that say anything."""
    if not rows:
        print(empty, file=sys.stderr)
        return
    shown = [each for each in columns if any(row.get(each) not in (None, "", []) for row in rows)]
    lines = [tuple(each.upper() for each in shown), *(tuple(_cell(row.get(each)) for each in shown) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case list():
            return ",".join(str(each) for each in value) or "-"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            # What others have written cannot command a terminal.
            return "".join(sign if sign.isprintable() else "?" for sign in str(value))


def failed(problem: NotDone) -> int:
    if str(problem):
        print(f"headgate: {problem}", file=sys.stderr)
    return 1
