"""Types for a PostgreSQL connection.

asyncpg has no type annotations. These protocols declare the parts of asyncpg that are used here.
"""

# ruff: noqa: ASYNC109  The parameter names are asyncpg's.

from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class DatabaseRow(Protocol):
    def __getitem__(self, name: str) -> Any: ...


class DatabaseConnection(Protocol):
    async def fetch(self, query: str, *values: object, timeout: float | None = None) -> list[DatabaseRow]: ...

    async def fetchrow(self, query: str, *values: object, timeout: float | None = None) -> DatabaseRow | None: ...

    async def fetchval(self, query: str, *values: object, timeout: float | None = None) -> Any: ...

    async def execute(self, query: str, *values: object, timeout: float | None = None) -> str: ...

    async def copy_to_table(
        self,
        table_name: str,
        *,
        source: AsyncIterable[bytes],
        columns: Sequence[str],
        schema_name: str | None = None,
        format: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> str: ...

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[object]: ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...

    def add_termination_listener(self, callback: Callable[..., None]) -> None: ...

    def is_closed(self) -> bool: ...

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...
