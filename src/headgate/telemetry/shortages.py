"""Resources that this process lacks: file descriptors, disk space for the ledger's spool, and name resolution."""

from collections.abc import Iterable, Iterator

from headgate.model.verdict import Shortage
from headgate.ports import descriptors


def shortages(disk_problem: str | None, name_problems: Iterable[str] = ()) -> Iterator[Shortage]:
    """`disk_problem` is the reason why the ledger cannot write, with the remedy after a semicolon.

    `name_problems` are failures of name resolution.
    """
    if descriptors.are_scarce():
        yield Shortage(
            f"nearly all of its {descriptors.limit():,} file descriptors are in use",
            "Raise the limit of open files (`ulimit -n`, or LimitNOFILE of the service) and restart the gateway.",
        )
    if disk_problem is not None:
        what, _, remedy = disk_problem.partition("; ")
        yield Shortage(what, f"{remedy[:1].upper()}{remedy[1:]}." if remedy else "Check the disk under ledger.spool.")
    for problem in name_problems:
        yield Shortage(
            problem,
            "Check the name server and the network to it (`dig` from the gateway's machine); the engines are not to "
            "blame, and no restart is needed.",
            partial=True,
        )
