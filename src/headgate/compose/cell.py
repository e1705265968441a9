"""Which real parts make a process of a cell?"""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from headgate.config.cell import member_name
from headgate.config.settings import Settings
from headgate.hosts.cell.host import CellHost, LeaderWatch
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.options import CellOptions
from headgate.hosts.cell.protocol.messages import Share
from headgate.ports.clock import Clock
from headgate.ports.observer import Observer

if TYPE_CHECKING:
    from headgate.hosts.cell.redis.registry import Registry


def open_cell(
    settings: Settings,
    cell: CellOptions,
    clock: Clock,
    observers: Sequence[Observer],
    on_fault: Callable[[BaseException], None],
    *,
    of_scheduler: Sequence[Observer],
    on_duty: Callable[[bool], None],
    on_agreed: Callable[[str], None],
    serves: bool,
    worker: int | None,
    bookkeepers: Sequence[Observer] = (),
) -> CellHost:
    """Raises `OSError` where a part is not installed, with the next step."""
    try:
        from headgate.hosts.cell.redis.store import RedisStore
    except ImportError as error:
        raise OSError(0, f"cell: {error}; install headgate[cell]") from error
    name = member_name(settings, socket.gethostname(), worker=worker, serves=serves)
    # Before a scheduler has dealt out shares those of one machine are told apart by their numbers, others by chance.
    rank = crc32(name.encode()) if worker is None else worker
    node = Node(
        name,
        time.time_ns(),
        clock.now(),
        lambda: f"{name}/{secrets.token_hex(4)}",
        share=Share(rank % cell.members, cell.members),
        candidate=cell.gateways_schedule or not serves,
        serves=serves,
        observers=(LeaderWatch(observers), *of_scheduler),
    )
    store = RedisStore(cell.store, cell=cell.name, member=name)
    return CellHost(
        node, store, clock, observers, on_fault, on_duty=on_duty, on_agreed=on_agreed, bookkeepers=bookkeepers
    )


def open_registry(
    host: CellHost, cell: CellOptions, admin: Callable[[], tuple[str, int]], leave: Callable[[], None]
) -> "Registry":
    """The registry in which members of the cell publish their admin addresses. `admin` returns this process's address.

    `leave` is called when another process has taken this member's name.
    """
    from headgate.hosts.cell.redis.names import NameLease
    from headgate.hosts.cell.redis.registry import Registry

    def on_lost(problem: str) -> None:
        host.lose_name(problem)
        leave()

    incarnation, member = f"{host.incarnation}-{secrets.token_hex(4)}", host.name
    name = NameLease(cell.store, cell=cell.name, member=member, incarnation=incarnation, on_lost=on_lost)
    return Registry(cell.store, cell=cell.name, member=member, name=name, admin=admin, leads=lambda: host.leads)
