"""Options for budget notifications."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NotificationOptions:
    webhook: str = field(repr=False)
    """Complete URL. It may contain a secret, so it is never shown."""
    webhook_shown: str
    """The URL's host, for messages."""
