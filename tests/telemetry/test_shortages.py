"""Shortages of file descriptors and disk space, and failing name resolution."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.ports import file_descriptors
from headgate.telemetry.shortages import shortages


@contextmanager
def limited_to(most: int) -> Iterator[None]:
    """Limit the number of files this process may have open."""
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


def test_process_with_enough_resources_reports_no_shortage() -> None:
    assert list(shortages(None)) == []


def test_nearly_exhausted_file_descriptors_are_reported_as_a_shortage() -> None:
    with limited_to(lowest_free() + 1):
        [short] = shortages(None)

    assert "file descriptors are in use" in short.description
    assert "ulimit -n" in short.remedy


def test_exhausted_file_descriptors_are_reported_as_a_shortage() -> None:
    with limited_to(lowest_free()):
        [short] = shortages(None)

    assert "file descriptors are in use" in short.description


def test_limit_far_above_the_open_files_is_not_reported_as_a_shortage() -> None:
    with limited_to(lowest_free() * 2 + file_descriptors.RESERVED_MAX + 64):
        assert list(shortages(None)) == []


def test_unwritable_disk_is_reported_as_a_shortage_with_a_remedy() -> None:
    [short] = shortages("the spool cannot be written (No space left on device); free space in ledger.spool_directory")

    assert short.description == "the spool cannot be written (No space left on device)"
    assert short.remedy == "Free space in ledger.spool_directory."


def test_disk_problem_without_a_remedy_points_to_the_disk() -> None:
    [short] = shortages("the spool cannot be written")

    assert short.remedy == "Check the disk under ledger.spool_directory."


def test_failing_name_resolution_is_reported_as_a_gateway_shortage() -> None:
    [short] = shortages(None, ["the resolver does not answer for engine.test"])

    assert short.description == "the resolver does not answer for engine.test"
    assert "The engines are not the cause" in short.remedy
