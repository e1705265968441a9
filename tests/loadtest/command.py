"""Helpers that run `headgate loadtest` in this process or as a child process."""

import asyncio
import gc
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

from headgate.cli.main import main

SERVER_S_MAX = 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@contextmanager
def served(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Runs the server in another thread, because the command runs its own event loop in this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(SERVER_S_MAX)
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(SERVER_S_MAX)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def loadtest(url: str, *arguments: str, model: str | None = "fake", **environment: str) -> Said:
    named = () if model is None else ("--model", model)
    out, err, thresholds = io.StringIO(), io.StringIO(), gc.get_threshold()
    try:
        with patch.dict(os.environ, {"COLUMNS": "100", **environment}), redirect_stdout(out), redirect_stderr(err):
            code = main(["loadtest", "--url", url, *named, *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        # The command raises the garbage collection thresholds.
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    return Said(code, out.getvalue(), err.getvalue())


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headgate.cli.main",
        "loadtest",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


async def ended(process: asyncio.subprocess.Process) -> Said:
    out, err = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def loadtest_process(url: str, *arguments: str, **environment: str) -> Said:
    return await ended(await start("--url", url, "--model", "fake", *arguments, **environment))
