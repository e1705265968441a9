"""Tests for the watch on configuration files."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.control.file_watch import FileWatch, Notifications, change_filter
from headgate.control.options import file_stamp


class Watched:
    """A watch whose waits return immediately, and the contents of the file at each reported change."""

    def __init__(self, *files: Path, during_wait: Callable[[int], None] = lambda _: None) -> None:
        self.files = list(files)
        self.reported: list[str | None] = []
        self.waits = 0
        self._during_wait = during_wait
        self.watch = FileWatch(lambda: self.files, self._report, sleep=self._sleep)

    async def _report(self) -> None:
        file = self.files[0]
        self.reported.append(file.read_text() if file.exists() else None)

    async def _sleep(self, _: float) -> None:
        self.waits += 1
        self._during_wait(self.waits)


def rename_over(file: Path, text: str) -> None:
    (new := file.with_suffix(".new")).write_text(text)
    new.rename(file)


def config_map(folder: Path, version: int, text: str) -> None:
    """Publishes a version of a volume as the kubelet does: a new folder, and a symbolic link renamed over the old."""
    (data := folder / f"..version_{version}").mkdir(parents=True)
    (data / "headgate.yaml").write_text(text)
    (link := folder / "..data_tmp").symlink_to(data.name)
    link.rename(folder / "..data")
    if not (folder / "headgate.yaml").is_symlink():
        (folder / "headgate.yaml").symlink_to("..data/headgate.yaml")


async def test_unchanged_files_are_not_reported(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file, tmp_path / "missing")

    for _ in range(3):
        await watched.watch.look()

    assert (watched.reported, watched.waits) == ([], 0)


async def test_write_in_place_is_reported_once(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file)
    file.write_text("12")

    await watched.watch.look()
    await watched.watch.look()

    assert watched.reported == ["12"]


async def test_write_of_the_same_size_is_noticed_by_its_time(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file)
    file.write_text("2")
    os.utime(file, ns=(1, 1))

    await watched.watch.look()

    assert watched.reported == ["2"]


async def test_file_renamed_over_the_old_one_is_reported(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file)
    stamp = file.stat()
    rename_over(file, "2")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    await watched.watch.look()

    assert watched.reported == ["2"]


async def test_swapped_config_map_link_is_reported(tmp_path: Path) -> None:
    config_map(tmp_path, 1, "1")
    watched = Watched(tmp_path / "headgate.yaml")
    config_map(tmp_path, 2, "2")

    await watched.watch.look()
    await watched.watch.look()

    assert watched.reported == ["2"]


async def test_deleted_and_recreated_file_is_reported_twice(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file)

    file.unlink()
    await watched.watch.look()
    file.write_text("2")
    await watched.watch.look()

    assert watched.reported == [None, "2"]


async def test_file_deleted_and_recreated_within_the_settle_time_is_reported_once(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")

    def recreate(wait: int) -> None:
        if wait == 1:
            file.write_text("2")

    watched = Watched(file, during_wait=recreate)
    file.unlink()

    await watched.watch.look()
    await watched.watch.look()

    assert watched.reported == ["2"]


async def test_two_files_that_change_together_are_reported_once(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    certificate.write_text("1")
    key.write_text("1")

    def change_second(wait: int) -> None:
        if wait == 1:
            key.write_text("22")

    watched = Watched(certificate, key, during_wait=change_second)
    certificate.write_text("22")

    await watched.watch.look()
    await watched.watch.look()

    assert watched.reported == ["22"]
    assert watched.waits == 2


async def test_continuously_changing_file_is_read_anyway(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("")
    watched = Watched(file, during_wait=lambda wait: file.write_text("x" * wait) and None)
    file.write_text("x")

    await watched.watch.look()

    assert watched.reported == ["x" * 25]


async def test_change_between_reading_and_the_next_look_is_reported(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    read = {file: file_stamp(file)}
    file.write_text("12")
    watched = Watched(file)

    watched.watch.record(read)
    await watched.watch.look()

    assert watched.reported == ["12"]


async def test_added_file_is_watched_from_then_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    watched = Watched(first)
    second.write_text("1")
    watched.files.append(second)

    await watched.watch.look()
    assert watched.reported == []
    second.write_text("12")
    await watched.watch.look()

    assert watched.reported == ["1"]


async def test_removed_file_is_no_longer_watched(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file)
    watched.files.clear()

    file.write_text("12")
    await watched.watch.look()

    assert watched.reported == []


async def run_until_reported(tmp_path: Path, *, poll_s: float, uses_watchfiles: bool) -> str:
    config_map(tmp_path, 1, "1")
    file, reported = tmp_path / "headgate.yaml", asyncio.Event()

    async def report() -> None:
        reported.set()

    watch = FileWatch(lambda: [file], report, poll_s=poll_s, uses_watchfiles=uses_watchfiles)
    running = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(60):
            for version in range(2, 1000):
                # A change before the notifications are set up is not notified, so there are several.
                config_map(tmp_path, version, str(version))
                try:
                    await asyncio.wait_for(reported.wait(), 0.5)
                except TimeoutError:
                    continue
                return file.read_text()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    raise AssertionError("no change was reported")


async def test_change_is_noticed_by_comparing_without_watchfiles(tmp_path: Path) -> None:
    assert await run_until_reported(tmp_path, poll_s=0.01, uses_watchfiles=False) >= "2"


async def test_change_is_noticed_immediately_with_watchfiles(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")

    # The files would be compared only after an hour.
    assert await run_until_reported(tmp_path, poll_s=3600, uses_watchfiles=True) >= "2"


async def test_notifications_skip_missing_folders(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    changed = asyncio.Event()
    notifications = Notifications(changed)
    notifications.follow({tmp_path / "missing" / "a"})
    notifications.follow({tmp_path / "missing" / "a", tmp_path / "b"})
    try:
        async with asyncio.timeout(60):
            # A change before the notifications are set up is not notified, so there are several.
            for number in itertools.count():
                (tmp_path / "b").write_text(str(number))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.3)
                    break
    finally:
        notifications.stop()


def test_only_changes_of_the_files_and_of_links_concern_the_watch(tmp_path: Path) -> None:
    (link := tmp_path / "..data").symlink_to("..version_1")
    concerns = change_filter([tmp_path / "headgate.yaml"])

    assert concerns(1, str(tmp_path / "headgate.yaml"))
    assert concerns(1, str(link))
    assert not concerns(1, str(tmp_path / "headgate.log"))


async def test_file_that_changes_after_it_was_added_is_reported(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("1")
    watched = Watched(first)
    watched.watch.add([first, second])
    watched.files.append(second)
    second.write_text("12")

    await watched.watch.look()

    assert watched.reported == ["1"]


async def test_change_of_a_known_file_is_not_lost_when_it_is_added_again(tmp_path: Path) -> None:
    (file := tmp_path / "a").write_text("1")
    watched = Watched(file)
    file.write_text("12")
    watched.watch.add([file])

    await watched.watch.look()

    assert watched.reported == ["12"]


def test_invalid_path_counts_as_a_missing_file() -> None:
    assert file_stamp(Path("a\0b")) is None
