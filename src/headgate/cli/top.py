"""What is a live gateway doing, second by second?"""

import argparse
import json
import shutil
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from textwrap import wrap

from headgate.cli.output.view import Status, screen
from headgate.wire.escape import escaped

WINDOW_S = 10
_EVERY_S = 1.0
_ASK_S_MAX = 3.0
_VERDICT_LINES_MAX = 8

# The terminal's other screen, so that the view leaves no trace; each frame overwrites the last in place.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END, _REST = "\x1b[H", "\x1b[K\r\n", "\x1b[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument("--url", help="the admin listener, such as http://127.0.0.1:9090; else from the configuration")


def run(args: argparse.Namespace) -> int:
    from headgate.cli.status import admin_url

    url = admin_url(args.url, args.file)
    if url is None:
        return 1
    try:
        return watch(url)
    except KeyboardInterrupt:
        return 0


def watch(url: str, *, seconds: float | None = None, above: Callable[[], str] | None = None) -> int:
    """Shows the gateway behind this address until interrupted, or for so many seconds.

    `above` returns the lines to show above each frame."""
    view = View(sys.stdout.isatty())
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while until is None or time.monotonic() < until:
            started = time.monotonic()
            lines = [] if above is None else [*above().splitlines(), ""]
            view.show(ask(url), url, [*lines, *verdict_lines(url)])
            time.sleep(max(0.0, _EVERY_S - (time.monotonic() - started)))
    finally:
        view.close()
    return 0


def ask(url: str) -> Status | None:
    try:
        return json.loads(_page(f"{url}/status"))
    except (OSError, HTTPException, ValueError, RecursionError):
        return None


def verdict_lines(url: str) -> list[str]:
    """The summary of the gateway's verdicts, wrapped to the width of the terminal."""
    from msgspec.json import decode

    from headgate.cli.checkup.live import PATH, Said, summary

    try:
        said = decode(_page(url + PATH), type=Said)
    except (OSError, HTTPException, ValueError, RecursionError):
        return ["verdict: unknown, because the gateway did not return one", ""]
    columns = shutil.get_terminal_size().columns
    wrapped = [part for line in summary(said) for part in wrap(escaped(line), columns, subsequent_indent="    ")]
    return [*wrapped[:_VERDICT_LINES_MAX], ""]


def _page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_ASK_S_MAX) as answer:  # noqa: S310 (the operator's own)
        return answer.read()


class View:
    """The screen, one frame after another. Without a terminal each frame is printed below the last."""

    def __init__(self, terminal: bool) -> None:  # noqa: FBT001
        self._terminal = terminal
        self._past: deque[Status] = deque(maxlen=WINDOW_S + 1)
        if terminal:
            sys.stdout.write(_ENTER)

    def show(self, status: Status | None, url: str, above: Sequence[str] = ()) -> None:
        columns, rows = shutil.get_terminal_size()
        if status is None:
            self._past.clear()
            lines = [f"no gateway answers at {url}; is it running, and is this its admin listener?"]
        else:
            if self._past and status["uptime_s"] < self._past[-1]["uptime_s"]:
                # It was started again, and counts from nothing.
                self._past.clear()
            self._past.append(status)
            lines = screen(status, self._past[0], columns=columns, rows=rows - 1 - len(above))
        self._write([*(line[:columns] for line in above), *lines])

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
