"""Requests to a running gateway's admin API.

The operator's key is read from the environment. On the command line it would be visible in the shell history and in the
process list.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headgate.cli.input.admin_tls import admin_tls, trust_hint
from headgate.cli.input.operator_key import ADMIN_KEY_VARIABLE
from headgate.cli.status import admin_url

if TYPE_CHECKING:
    import ssl

_RESPONSE_TIMEOUT_S = 15.0
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class AdminRequestFailed(Exception):
    """The admin API request failed. The message gives the reason and the next step."""


class AdminResponseLost(AdminRequestFailed):
    """There was no response, although the gateway may have processed the request."""


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """A gateway's admin API, as an operator reaches it."""

    url: str
    key: str = field(repr=False)
    tls: "ssl.SSLContext | None"


def duration_s(text: str) -> int:
    """Parses a duration such as 90s, 15m, 12h or 30d into seconds."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNIT_SECONDS or not (number.isascii() and number.isdigit()) or not int(number):
        raise argparse.ArgumentTypeError(f'"{text}" is not a duration; use a number with s, m, h or d, such as 12h')
    return int(number) * _UNIT_SECONDS[unit]


def call_admin_api(
    args: argparse.Namespace, path: str, body: Mapping[str, object], *, response_timeout_s: float = _RESPONSE_TIMEOUT_S
) -> dict[str, Any]:
    """Calls the admin API and returns the response. Raises `AdminRequestFailed`."""
    import asyncio

    target = admin_target(args.url, args.config)
    given = {name: value for name, value in body.items() if value is not None}
    return asyncio.run(post_to_admin(target, path, given, response_timeout_s=response_timeout_s))


def admin_target(given_url: str | None, file: Path, *, permissions: str = "") -> AdminTarget:
    """Address of a gateway's admin API, and the operator's key. `permissions` are those that a new key should have.

    Raises `AdminRequestFailed`.
    """
    url = admin_url(given_url, file)
    if url is None:
        raise AdminRequestFailed("")
    key = os.environ.get(ADMIN_KEY_VARIABLE)
    if not key:
        create = f"headgate keys operator{f' --permissions {permissions}' if permissions else ''} --write"
        raise AdminRequestFailed(
            f"{ADMIN_KEY_VARIABLE} is not set; `export {ADMIN_KEY_VARIABLE}=$({create})` creates "
            "a key and writes its hash to the configuration; then send SIGHUP to the gateway"
        )
    return AdminTarget(url, key, admin_tls(url, file))


async def post_to_admin(
    target: AdminTarget, path: str, body: Mapping[str, object], *, response_timeout_s: float = _RESPONSE_TIMEOUT_S
) -> dict[str, Any]:
    """Sends one request to the admin API. Raises `AdminRequestFailed`."""
    url, answer_s_max = f"{target.url}/admin/v1/{path}", response_timeout_s
    import aiohttp

    from headgate.engines.page import ssl_error_of, tls_failure_reason

    timeout, place = aiohttp.ClientTimeout(total=answer_s_max), url.partition("/admin/")[0]
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            headers = {"authorization": f"Bearer {target.key}"}
            verified = True if target.tls is None else target.tls
            async with session.post(url, json=body, headers=headers, allow_redirects=False, ssl=verified) as answer:
                status, said = answer.status, await answer.read()
    except TimeoutError:
        what = f"the gateway at {place} did not respond within {answer_s_max:.0f} s"
        raise AdminResponseLost(f"{what}; check its log and its database") from None
    except aiohttp.ClientSSLError as error:
        failed = ssl_error_of(error)
        why = str(error) if failed is None else tls_failure_reason(failed)
        raise AdminRequestFailed(f"no gateway is responding at {place}: {why}; {trust_hint(why)}") from None
    except (aiohttp.ClientError, OSError) as error:
        why = f"no gateway is responding at {place}: {error}"
        kind = AdminRequestFailed if isinstance(error, aiohttp.ClientConnectorError) else AdminResponseLost
        raise kind(f"{why}; start one, or specify its admin listener with --url") from None
    return _parse_response(status, said)


def _parse_response(status: int, said: bytes) -> dict[str, Any]:
    import msgspec

    try:
        answer = msgspec.json.decode(said, type=dict[str, Any])
    except msgspec.DecodeError:
        no_keys = "its configuration has no admin_keys; run `headgate keys operator --write` and send it SIGHUP"
        hint = no_keys if status == 404 else "check that this is its admin listener"
        raise AdminRequestFailed(f"the gateway has no admin API (status {status}); {hint}") from None
    if status != 200:
        error: dict[str, Any] = answer.get("error", {})
        raise AdminRequestFailed(str(error.get("message", f"the gateway responded with status {status}; see its log")))
    return answer


def print_json(answer: Mapping[str, object]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """Prints the named columns of each row. Columns that are empty in all rows are omitted."""
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
        case dict():
            return " ".join(_pairs(cast("dict[str, object]", value))) or "-"
        case _:
            # Control characters could change the terminal's behaviour.
            return "".join(sign if sign.isprintable() else "?" for sign in str(value))


def _pairs(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """`key=value` for each value, omitting empty ones. Values with spaces are quoted, and nested keys have a prefix."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _pairs(cast("dict[str, object]", value), f"{prefix}{name}.")
        elif value not in (None, "", []):
            text = _cell(value)
            yield f'{prefix}{name}="{text}"' if " " in text else f"{prefix}{name}={text}"


def print_failure(problem: AdminRequestFailed) -> int:
    if str(problem):
        print(f"headgate: {problem}", file=sys.stderr)
    return 1
