"""Watch a running gateway. The screen is updated every second."""

import argparse
import json
import os
import select
import shutil
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Self

from headgate.cli.input.argument_types import add_config, add_url
from headgate.cli.input.operator_key import operator_headers
from headgate.cli.output.top_screen import Status, screen
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    import ssl

WINDOW_S = 10
_EVERY_S = 1.0
_REQUEST_TIMEOUT_S = 3.0
_VERDICT_LINES_MAX = 8

# Use the terminal's alternate screen, so that the shell's output is restored on exit. Each frame overwrites the
# previous one.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END, _REST = "\x1b[H", "\x1b[K\r\n", "\x1b[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "q or Ctrl-C quits."
    add_config(parser)
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    from headgate.cli.input.admin_tls import admin_tls
    from headgate.cli.status import admin_url

    url = admin_url(args.url, args.config)
    if url is None:
        return 1
    try:
        return watch(url, tls=admin_tls(url, args.config))
    except KeyboardInterrupt:
        return 0


def watch(
    url: str,
    *,
    seconds: float | None = None,
    header: Callable[[], str] | None = None,
    tls: "ssl.SSLContext | None" = None,
) -> int:
    """Shows the gateway at this URL until q or Ctrl-C is pressed, or for the given number of seconds.

    `header` returns the lines to show above each frame."""
    view = TopScreen(sys.stdout.isatty())
    until = None if seconds is None else time.monotonic() + seconds
    with Keyboard() as keyboard:
        try:
            while until is None or time.monotonic() < until:
                started = time.monotonic()
                lines = [] if header is None else [*header().splitlines(), ""]
                view.show(fetch_status(url, tls), url, [*lines, *verdict_lines(url, tls)])
                if keyboard.quits_within(_EVERY_S - (time.monotonic() - started)):
                    break
        finally:
            view.close()
    return 0


def fetch_status(url: str, tls: "ssl.SSLContext | None" = None) -> Status | None:
    try:
        return json.loads(_page(f"{url}/status", tls))
    except (OSError, HTTPException, ValueError, RecursionError):
        return None


def verdict_lines(url: str, tls: "ssl.SSLContext | None" = None) -> list[str]:
    """Summary of the gateway's verdicts, wrapped to the width of the terminal."""
    from msgspec.json import decode

    from headgate.cli.checkup.live import PATH, VerdictPage, summary

    try:
        said = decode(_page(url + PATH, tls), type=VerdictPage)
    except (OSError, HTTPException, ValueError, RecursionError):
        return ["verdict: unknown, because the gateway did not return one", ""]
    columns = shutil.get_terminal_size().columns
    wrapped = [part for line in summary(said) for part in wrap(escaped(line), columns, subsequent_indent="    ")]
    return [*wrapped[:_VERDICT_LINES_MAX], ""]


def _page(url: str, tls: "ssl.SSLContext | None") -> bytes:
    request = urllib.request.Request(url, headers=dict(operator_headers()))  # noqa: S310 (the operator's own)
    with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S, context=tls) as answer:  # noqa: S310
        return answer.read()


class Keyboard:
    """Keys pressed in the terminal, read without waiting for Enter. Without a terminal, no key press is ever
    reported.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
            import termios
            import tty

            file = self._file = sys.stdin.fileno()
            self._before = termios.tcgetattr(file)
            tty.setcbreak(file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            import termios

            with suppress(termios.error):
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def quits_within(self, seconds: float) -> bool:
        """Waits for up to this many seconds. Returns True as soon as q is pressed."""
        until = time.monotonic() + max(0.0, seconds)
        while True:
            left = max(0.0, until - time.monotonic())
            if self._file is None:
                time.sleep(left)
                return False
            readable, _, _ = select.select([self._file], [], [], left)
            if not readable:
                return False
            pressed = os.read(self._file, 64)
            if b"q" in pressed.lower():
                return True
            if not pressed:  # The terminal is gone, and its descriptor would stay readable.
                self._file = None


class TopScreen:
    """Draws successive frames. Without a terminal, each frame is printed below the previous one."""

    def __init__(self, terminal: bool) -> None:  # noqa: FBT001
        self._terminal = terminal
        self._past: deque[Status] = deque(maxlen=WINDOW_S + 1)
        if terminal:
            sys.stdout.write(_ENTER)

    def show(self, status: Status | None, url: str, header: Sequence[str] = ()) -> None:
        columns, rows = shutil.get_terminal_size()
        if status is None:
            self._past.clear()
            lines = [
                f"No gateway is responding at {url}. Check that it is running and that this is its admin listener."
            ]
        else:
            if self._past and status["uptime_s"] < self._past[-1]["uptime_s"]:
                # The gateway has restarted, so its counters start from 0.
                self._past.clear()
            self._past.append(status)
            lines = screen(status, self._past[0], columns=columns, rows=rows - 1 - len(header))
        self._write([*(line[:columns] for line in header), *lines])

    def _write(self, lines: list[str]) -> None:
        if self._terminal:
            sys.stdout.write(_HOME + "".join(line + _LINE_END for line in lines) + _REST)
        else:
            sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()

    def close(self) -> None:
        if self._terminal:
            # The terminal itself may be gone.
            with suppress(OSError):
                sys.stdout.write(_LEAVE)
                sys.stdout.flush()
