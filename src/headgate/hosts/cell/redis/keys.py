"""Under which keys does a cell keep what it has in Redis?

All of one cell share a hash tag, so that a script may touch several of them.
"""


class CellKeys:
    __slots__ = ("_prefix", "admin", "check", "inbox", "lease", "snapshot")

    def __init__(self, cell: str) -> None:
        self._prefix = prefix = f"{{headgate:{cell}}}:"
        self.inbox = f"{prefix}inbox".encode()
        self.lease = f"{prefix}lease".encode()
        self.snapshot = f"{prefix}snapshot".encode()
        self.admin = f"{prefix}admin"
        """Where the members listen for operators."""
        self.check = ("SETRANGE", f"{prefix}check", 0, "")
        """A command that writes nothing, and is refused where a write would be: by a replica, or for want of memory."""

    def name(self, member: str) -> bytes:
        """Key that holds the incarnation which has a member's name."""
        return f"{self._prefix}name:{member}".encode()

    def outbox(self, member: str) -> bytes:
        return f"{self._prefix}outbox:{member}".encode()
