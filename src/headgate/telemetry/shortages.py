"""Resources that this process has run out of: file descriptors, disk space for the ledger's spool, name resolution."""

from collections.abc import Iterable, Iterator

from headgate.model.verdict import Shortage
from headgate.ports import file_descriptors


def shortages(disk_problem: str | None, name_problems: Iterable[str] = ()) -> Iterator[Shortage]:
    """Current shortages.

    `disk_problem` says why the ledger cannot write, with the remedy after a semicolon. `name_problems` are name
    resolution failures.
    """
    if file_descriptors.are_scarce():
        yield Shortage(
            f"nearly all {file_descriptors.limit():,} file descriptors are in use",
            "Raise the open-file limit (`ulimit -n` or the service's LimitNOFILE) and restart the gateway.",
        )
    if disk_problem is not None:
        what, _, remedy = disk_problem.partition("; ")
        action = f"{remedy[:1].upper()}{remedy[1:]}." if remedy else "Check the disk under ledger.spool_directory."
        yield Shortage(what, action)
    for problem in name_problems:
        yield Shortage(
            problem,
            "Check the name server and the network path to it (`dig` from the gateway's machine). The engines are not "
            "the cause, and no restart is needed.",
            partial=True,
        )
