"""Watches the configuration file and the files that it names, and reports a change once the files have settled.

The files are compared by their stamps, so any way of changing them is noticed: writing in place, renaming a new file
over the old one, or swapping the symbolic link of a Kubernetes ConfigMap or Secret. They are compared every two
seconds. With `watchfiles` installed, a change is noticed immediately.
"""

import asyncio
import contextlib
import importlib.util
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from headgate.control.options import FileStamp, file_stamp

POLL_S: Final = 2.0
SETTLE_S: Final = 0.2
"""Several files often change together, such as a certificate and its key. They are read once they have not changed for
this many seconds.
"""
_SETTLE_CHECKS_MAX: Final = 25
"""Maximum number of times that changing files are compared before they are read anyway."""

_DEBOUNCE_MS: Final = 50


class FileWatch:
    def __init__(
        self,
        files: Callable[[], Collection[Path]],
        on_change: Callable[[], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        poll_s: float = POLL_S,
        uses_watchfiles: bool | None = None,
    ) -> None:
        """`files` returns the files to watch; its result may change. `on_change` is awaited after each change.

        By default, `watchfiles` is used if it is installed.
        """
        self._files = files
        self._on_change = on_change
        self._sleep = sleep
        self._poll_s = poll_s
        installed = importlib.util.find_spec("watchfiles") is not None
        self._uses_watchfiles = installed if uses_watchfiles is None else uses_watchfiles
        self._seen: dict[Path, FileStamp] = stamps(files())
        """Stamps of the files when they were last read or reported."""

    def record(self, read: Mapping[Path, FileStamp]) -> None:
        """Records the stamps with which files were read, so that a change since then is noticed."""
        self._seen |= read

    def add(self, files: Collection[Path]) -> None:
        """Watches new files from now on. Must be called before they are read, so that no change is missed."""
        for path in files:
            if path not in self._seen:
                self._seen[path] = file_stamp(path)

    async def run(self) -> None:
        changed = asyncio.Event()
        notifications = Notifications(changed) if self._uses_watchfiles else None
        try:
            while True:
                if notifications is not None:
                    notifications.follow(self._seen.keys())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await changed.wait()
                changed.clear()
                await self.look()
        finally:
            if notifications is not None:
                notifications.stop()

    async def look(self) -> None:
        """Compares the files with their last stamps, and reports a change once it has settled."""
        now = await self._stamps()
        watched = frozenset(self._files())
        self._seen = {path: stamp for path, stamp in self._seen.items() if path in watched}
        if all(stamp == self._seen.setdefault(path, stamp) for path, stamp in now.items()):
            return
        self._seen |= await self._settled(now)
        await self._on_change()

    async def _settled(self, now: Mapping[Path, FileStamp]) -> Mapping[Path, FileStamp]:
        for _ in range(_SETTLE_CHECKS_MAX):
            await self._sleep(SETTLE_S)
            before, now = now, await self._stamps()
            if now == before:
                break
        return now

    async def _stamps(self) -> Mapping[Path, FileStamp]:
        # A file on a network volume may take long to respond.
        return await asyncio.to_thread(stamps, self._files())


class Notifications:
    """Sets an event when the operating system reports that one of the files may have changed."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._files: frozenset[Path] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def follow(self, files: Collection[Path]) -> None:
        present = frozenset(each for each in files if each.parent.is_dir())
        if present == self._files and (self._task is None or not self._task.done()):
            return
        self.stop()
        self._files = present
        self._task = asyncio.get_running_loop().create_task(self._run(present)) if present else None

    async def _run(self, files: frozenset[Path]) -> None:
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

        # A directory may be deleted or unreadable. The stamps are compared in any case.
        with contextlib.suppress(OSError, RuntimeError):
            async for _ in awatch(
                *{each.parent for each in files},
                watch_filter=change_filter(files),
                recursive=False,
                debounce=_DEBOUNCE_MS,
            ):
                self._changed.set()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


def change_filter(files: Collection[Path]) -> Callable[[object, str], bool]:
    """Returns a filter for events. It accepts those after which one of the files may have changed."""
    names = {each.name for each in files}

    def concerns(_: object, path: str) -> bool:
        # A ConfigMap changes by replacing a symbolic link beside the file. Other files in the directory, such as
        # the log, may change often.
        return Path(path).name in names or Path(path).is_symlink()

    return concerns


def stamps(files: Collection[Path]) -> dict[Path, FileStamp]:
    return {path: file_stamp(path) for path in files}
