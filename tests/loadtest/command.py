"""How does a test run `headgate loadtest` as a user does, beside an engine in its own event loop?"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


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


async def loadtest(url: str, *arguments: str, **environment: str) -> Said:
    return await ended(await start(url, "--model", "fake", *arguments, **environment))
