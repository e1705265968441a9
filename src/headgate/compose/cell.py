"""Builds a process's cell host and registry."""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from headgate.config.cell import member_name
from headgate.config.settings import Settings
from headgate.hosts.cell.host import CellHost, LeaderObserver
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.options import CellOptions
from headgate.hosts.cell.protocol.messages import Share
from headgate.ports.clock import Clock
from headgate.ports.observer import Observer

if TYPE_CHECKING:
    from headgate.hosts.cell.redis.registry import MemberRegistry


def open_cell(
    settings: Settings,
    cell: CellOptions,
    clock: Clock,
    observers: Sequence[Observer],
    on_fault: Callable[[BaseException], None],
    *,
    scheduler_observers: Sequence[Observer],
    on_engine_watch: Callable[[bool], None],
    on_policy_agreed: Callable[[str], None],
    serves: bool,
    worker: int | None,
    billing_observers: Sequence[Observer] = (),
) -> CellHost:
    """Builds the cell host. Raises `OSError` with the next step if a required library is not installed."""
    try:
        from headgate.hosts.cell.redis.store import RedisStore
    except ImportError as error:
        raise OSError(0, f"cell: {error}; install headgate[cell]") from error
    name = member_name(settings, socket.gethostname(), worker=worker, serves=serves)
    # Until a scheduler assigns shares, workers use their index as their rank, and other members use a hash of their
    # name.
    rank = crc32(name.encode()) if worker is None else worker
    node = Node(
        name,
        time.time_ns(),
        clock.now(),
        lambda: f"{name}/{secrets.token_hex(4)}",
        share=Share(rank % cell.member_count, cell.member_count),
        candidate=cell.gateways_are_candidates or not serves,
        serves=serves,
        observers=(LeaderObserver(observers), *scheduler_observers),
    )
    store = RedisStore(cell.store, cell=cell.name, member=name)
    return CellHost(
        node,
        store,
        clock,
        observers,
        on_fault,
        on_engine_watch=on_engine_watch,
        on_policy_agreed=on_policy_agreed,
        billing_observers=billing_observers,
    )


def open_registry(
    host: CellHost,
    cell: CellOptions,
    admin: Callable[[], tuple[str, int]],
    leave: Callable[[], None],
    *,
    https: bool = False,
) -> "MemberRegistry":
    """Builds the registry in which cell members publish their admin addresses.

    `admin` returns this process's address, and `https` is true if its admin listener uses TLS. `leave` is called if
    another process has taken this member's name.
    """
    from headgate.hosts.cell.redis.name_lease import NameLease
    from headgate.hosts.cell.redis.registry import MemberRegistry

    def on_lost(problem: str) -> None:
        host.lose_name(problem)
        leave()

    incarnation, member = f"{host.incarnation}-{secrets.token_hex(4)}", host.name
    name = NameLease(cell.store, cell=cell.name, member=member, incarnation=incarnation, on_lost=on_lost)
    return MemberRegistry(
        cell.store,
        cell=cell.name,
        member=member,
        name=name,
        admin=admin,
        is_leader=lambda: host.is_leader,
        https=https,
    )
