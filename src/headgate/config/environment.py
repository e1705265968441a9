"""References to environment variables and files in configuration values.

`${NAME}` anywhere in a value is replaced by that variable, `${file:PATH}` by the content of that file, and `$${` by
`${`. The content usually is a secret, so no message quotes any part of it.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headgate.control.options import FileStamp, file_stamp, stamp_of

VALUE_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a file that `${file:PATH}` refers to. A larger file is probably the wrong one."""

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{file:([^{}]+)\}|\$\{")


class ExpansionError(Exception):
    """A variable is not set, a file cannot be used, or a reference is malformed. The message identifies it."""


class References:
    """Resolves the references in one configuration file. Each file is read once."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        """Relative paths are relative to `folder`."""
        self._environ = environ
        self._folder = folder
        self._contents: dict[Path, str | ExpansionError] = {}
        self.files: dict[Path, FileStamp] = {}
        """Stamps of the files that were read or are missing."""

    def expand(self, text: str) -> str:
        return _REFERENCE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        name: str | None = found[1]
        path: str | None = found[2]
        if name is not None:
            return self._variable(name)
        if path is not None:
            return self._content(self._folder / path)
        if found[0] == "$${":
            return "${"
        raise ExpansionError(
            '"${" must start a reference such as ${NAME} or ${file:PATH}; write "$${" for a literal "${"'
        )

    def _variable(self, name: str) -> str:
        if name not in self._environ:
            raise ExpansionError(f"the environment variable {name} is not set; export it before starting Headgate")
        return self._environ[name]

    def _content(self, path: Path) -> str:
        if path not in self._contents:
            self._contents[path] = self._read(path)
        found = self._contents[path]
        if isinstance(found, ExpansionError):
            raise found
        return found

    def _read(self, path: Path) -> str | ExpansionError:
        """The content without trailing line breaks, which most editors and `echo` add."""
        self.files[path] = file_stamp(path)
        try:
            content, self.files[path] = read_small_file(
                path, bytes_max=VALUE_BYTES_MAX, use="a file that contains only the value"
            )
            text = content.decode("utf-8-sig").rstrip("\r\n")
        except FileNotFoundError:
            return ExpansionError(f"the file {path} does not exist; create it, or correct the path in ${{file:PATH}}")
        except IsADirectoryError:
            return ExpansionError(f"{path} is a directory; use the path of a file that contains only the value")
        except UnicodeDecodeError:
            return ExpansionError(f"the file {path} is not UTF-8 text; store the value as text")
        except ValueError as error:
            return ExpansionError(f"the file {path} {error}")
        except OSError as error:
            return ExpansionError(f"the file {path} cannot be read: {error.strerror}; check its path and permissions")
        if not text:
            return ExpansionError(f"the file {path} is empty; write the value into it")
        if "\0" in text:
            return ExpansionError(f"the file {path} contains a zero byte; store the value as text")
        return text


def read_file(path: Path) -> tuple[bytes, FileStamp]:
    """Returns the content of a file and the stamp that belongs to it. Raises `OSError`."""
    with path.open("rb") as file:
        return file.read(), stamp_of(os.fstat(file.fileno()))


def read_small_file(path: Path, *, bytes_max: int, use: str) -> tuple[bytes, FileStamp]:
    """Like `read_file`. Raises `ValueError` with the problem and what to use if the file has the wrong type or size."""
    with open(path, "rb", opener=_open_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"is not a regular file; use the path of {use}")
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"is larger than {bytes_max // 1024} KiB; use {use}")
    return content, stamp_of(status)


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens the file. Opening a named pipe does not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
