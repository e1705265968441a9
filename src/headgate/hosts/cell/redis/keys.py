"""Redis keys of a cell.

All keys of one cell share a hash tag, so that a script may access several of them.
"""


class CellKeys:
    __slots__ = ("_prefix", "admin", "check", "inbox", "lease", "snapshot")

    def __init__(self, cell: str) -> None:
        self._prefix = prefix = f"{{headgate:{cell}}}:"
        self.inbox = f"{prefix}inbox".encode()
        self.lease = f"{prefix}lease".encode()
        self.snapshot = f"{prefix}snapshot".encode()
        self.admin = f"{prefix}admin"
        """Hash of the members' admin addresses."""
        self.check = ("SETRANGE", f"{prefix}check", 0, "")
        """Command that writes nothing but fails if a write would fail, such as on a replica or with no free memory."""

    def name(self, member: str) -> bytes:
        """Returns the key for the incarnation that has a member's name."""
        return f"{self._prefix}name:{member}".encode()

    def outbox(self, member: str) -> bytes:
        return f"{self._prefix}outbox:{member}".encode()
