"""The gateway's key for an engine."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The gateway's key for an engine, and its header."""

    value: str = field(repr=False)
    header: str = ""
    """Header that contains only the key. Empty for `Authorization: Bearer KEY`."""

    @staticmethod
    def text(key: "ApiKey | str | None") -> str:
        """Returns the key itself, or an empty string if there is none."""
        return key.value if isinstance(key, ApiKey) else key or ""

    def as_headers(self) -> dict[str, str]:
        return {self.header: self.value} if self.header else {"authorization": f"Bearer {self.value}"}
