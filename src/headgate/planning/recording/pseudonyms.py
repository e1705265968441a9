"""Names in a trace that stand for the real ones.

A tenant is replaced by a keyed hash. The key is random for each trace and is never stored, so names cannot be found by
trying them, and two traces cannot be linked. Each level of a tenant's path is hashed with the levels above it, so that
the trace keeps the structure of organizations, projects and keys. Stages are numbered.
"""

import secrets
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from headgate.wire.escape import printable

NAME_CHARS_MAX: Final = 256
_LEVELS_MAX: Final = 3
_HASH_BYTES: Final = 5
_STAGES_MAX: Final = 1_000
"""Maximum number of different stages. Further ones get the number 0."""
_TENANTS_CACHED: Final = 65_536


class TenantPseudonyms:
    def __init__(self, *, keep_names: bool = False, secret: bytes | None = None) -> None:
        self._key = secret or secrets.token_bytes(32)
        self.name = lru_cache(_TENANTS_CACHED)(_kept_name if keep_names else self._hashed_path)
        """Returns the tenant's pseudonym."""

    def _hashed_path(self, tenant: str) -> str:
        if not tenant:
            return ""
        levels = tenant.split("/")
        if len(levels) > _LEVELS_MAX or not all(levels):
            levels = [tenant]
        return "/".join(self._hash("/".join(levels[: number + 1])) for number in range(len(levels)))

    def _hash(self, text: str) -> str:
        # The letter keeps YAML from reading a name as a number.
        return "t" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES, key=self._key).hexdigest()


class StageNumbers:
    """Numbers the callers' stages in order of appearance. Their names are text from callers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def name(self, stage: str) -> str:
        number = self._numbers.get(stage)
        if number is None:
            number = len(self._numbers) + 1 if len(self._numbers) < _STAGES_MAX else 0
            if number:
                self._numbers[stage] = number
        return f"s{number}"


def _kept_name(tenant: str) -> str:
    return printable(tenant, NAME_CHARS_MAX)
