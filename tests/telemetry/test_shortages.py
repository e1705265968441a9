"""Shortages of file descriptors, disk space and name resolution."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.ports import descriptors
from headgate.telemetry.shortages import shortages


@contextmanager
def limited_to(most: int) -> Iterator[None]:
    """Limit the open files of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def lowest_free() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_a_process_with_enough_of_everything_reports_no_shortage() -> None:
    assert list(shortages(None)) == []


def test_file_descriptors_that_are_nearly_used_up_are_a_shortage() -> None:
    with limited_to(lowest_free() + 1):
        [short] = shortages(None)

    assert "file descriptors are in use" in short.what
    assert "ulimit -n" in short.remedy


def test_file_descriptors_that_are_used_up_are_a_shortage() -> None:
    with limited_to(lowest_free()):
        [short] = shortages(None)

    assert "file descriptors are in use" in short.what


def test_a_limit_far_above_the_open_files_is_no_shortage() -> None:
    with limited_to(lowest_free() * 2 + descriptors.RESERVE + 64):
        assert list(shortages(None)) == []


def test_a_disk_that_cannot_be_written_is_a_shortage_with_its_remedy() -> None:
    [short] = shortages("the spool cannot be written (No space left on device); make room in ledger.spool")

    assert short.what == "the spool cannot be written (No space left on device)"
    assert short.remedy == "Make room in ledger.spool."


def test_a_disk_problem_without_a_remedy_points_to_the_disk() -> None:
    [short] = shortages("the spool cannot be written")

    assert short.remedy == "Check the disk under ledger.spool."


def test_failing_name_resolution_is_a_shortage_of_the_gateway() -> None:
    [short] = shortages(None, ["the resolver does not answer for engine.test"])

    assert short.what == "the resolver does not answer for engine.test"
    assert "the engines are not to blame" in short.remedy
