"""Tests for `${file:PATH}` in configuration values."""

import os
from pathlib import Path

import pytest

from headgate.config.environment import VALUE_BYTES_MAX
from headgate.config.load import database_url, key_secret, load
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.control.options import file_stamp
from headgate.model.engine_profile import PROFILES
from tests.config.builders import ENGINES, small_with

CANARY = "canary-of-a-file-5f1d"


def load_file(folder: Path, *lines: str) -> Settings:
    file = folder / "headgate.yaml"
    file.write_text(small_with(*lines))
    return load(file, {}, engines=ENGINES, profiles=PROFILES)


def problem_of(folder: Path, *lines: str) -> str:
    with pytest.raises(ConfigErrors) as raised:
        load_file(folder, *lines)
    [problem] = raised.value.problems
    assert problem.line == 8
    return f"{problem.setting}: {problem.message}".replace(str(folder), "FOLDER")


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n"])
def test_file_content_replaces_the_reference_without_trailing_line_breaks(tmp_path: Path, ending: str) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_bytes((CANARY + ending).encode())

    settings = load_file(tmp_path, "key_secret: ${file:secrets/key}")

    assert settings.key_secret == CANARY.encode()


def test_reference_may_be_part_of_a_value_and_content_is_not_expanded_again(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a${HOME}b")

    settings = load_file(tmp_path, "key_secret: x-${file:key}-y$${file:key}")

    assert settings.key_secret == b"x-a${HOME}b-y${file:key}"


def test_absolute_path_is_used_as_it_is(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").write_text(CANARY)
    (folder := tmp_path / "folder").mkdir()

    assert load_file(folder, f"key_secret: ${{file:{elsewhere}}}").key_secret == CANARY.encode()


def test_single_settings_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    file = tmp_path / "headgate.yaml"
    file.write_text("key_secret: ${file:key}\ndatabase: postgresql://u:${file:key}@db/headgate\n")

    assert key_secret(file, {}) == CANARY.encode()
    assert database_url(file, {}) == f"postgresql://u:{CANARY}@db/headgate"


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert problem_of(tmp_path, "key_secret: ${file:secrets/key}") == (
        "key_secret: the file FOLDER/secrets/key does not exist; create it, or correct the path in ${file:PATH}"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty; write the value into it"),
        (b"\n", "is empty; write the value into it"),
        (CANARY.encode() + b"\xff", "is not UTF-8 text; store the value as text"),
        (CANARY.encode() + b"\0", "contains a zero byte; store the value as text"),
        (CANARY.encode() + b"x" * VALUE_BYTES_MAX, "is larger than 64 KiB; use a file that contains only the value"),
    ],
    ids=["empty", "line break", "latin-1", "zero byte", "too large"],
)
def test_unusable_content_is_reported_without_quoting_it(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "key").write_bytes(content)

    assert problem_of(tmp_path, "key_secret: ${file:key}") == f"key_secret: the file FOLDER/key {problem}"


def test_directory_and_named_pipe_are_rejected_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    of_pipe = problem_of(tmp_path, "key_secret: ${file:pipe}")
    of_folder = problem_of(tmp_path, "key_secret: ${file:folder}")

    assert of_pipe.startswith("key_secret: the file FOLDER/pipe is not a regular file")
    assert of_folder.startswith("key_secret: FOLDER/folder is a directory")


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)

    assert problem_of(tmp_path, "key_secret: ${file:key/key}") == (
        "key_secret: the file FOLDER/key/key cannot be read: Not a directory; check its path and permissions"
    )


def test_settings_list_the_files_with_their_stamps(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)

    settings = load_file(tmp_path, "key_secret: ${file:key}")

    assert settings.files == {name: file_stamp(name) for name in (tmp_path / "headgate.yaml", tmp_path / "key")}
    assert None not in settings.files.values()


def test_errors_list_missing_and_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    with pytest.raises(ConfigErrors) as raised:
        load_file(tmp_path, "key_secret: ${file:missing}", "zone: ${file:empty}", "unknown: 1")

    own, empty = tmp_path / "headgate.yaml", tmp_path / "empty"
    assert raised.value.files == {
        own: file_stamp(own),
        tmp_path / "missing": None,
        empty: file_stamp(empty),
    }
    assert len(raised.value.problems) == 3


def test_changed_file_changes_the_configuration_hash(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a secret of sixteen")
    first = load_file(tmp_path, "key_secret: ${file:key}").hash
    (tmp_path / "key").write_text("another of sixteen.")

    assert load_file(tmp_path, "key_secret: ${file:key}").hash != first


def test_quoting_hint_includes_file_references(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as raised:
        load_file(tmp_path, "tracing: {endpoint: ${file:key}}")

    assert str(raised.value).endswith('; inside braces and brackets, quote the reference: "${file:key}"')
