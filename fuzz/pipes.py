"""Fake socket transport for fuzzing connections."""

from typing import Any


class Pipe:
    """Transport that records the written bytes and whether it was closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.written_eof = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.closed, "nothing is written after the end"
        assert not self.written_eof, "nothing is written after the end"
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written_eof = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket()


class _Socket:
    def setsockopt(self, *_: object) -> None: ...

    def fileno(self) -> int:
        return -1
