"""Resources that this process lacks: file descriptors, and room on the disk of the ledger's spool."""

from collections.abc import Iterator

from headgate.model.verdict import Shortage
from headgate.ports import descriptors


def shortages(disk_problem: str | None) -> Iterator[Shortage]:
    """`disk_problem` is the reason why the ledger cannot write, with the remedy after a semicolon."""
    if descriptors.are_scarce():
        yield Shortage(
            f"nearly all of its {descriptors.limit():,} file descriptors are in use",
            "Raise the limit of open files (`ulimit -n`, or LimitNOFILE of the service) and restart the gateway.",
        )
    if disk_problem is not None:
        what, _, remedy = disk_problem.partition("; ")
        yield Shortage(what, f"{remedy[:1].upper()}{remedy[1:]}." if remedy else "Check the disk under ledger.spool.")
