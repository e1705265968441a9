"""Which engine processes run in a Ray cluster for one pool, and how many?

As with processes on this machine (processes.py), the fleet holds as many slots as are wanted, and everything that is
said there of starting, draining and crashing holds here. Only where the processes run is another matter: Ray finds a
node with room for each, waits for one where there is none, and gives it its GPUs. So an endpoint's address is known
only when it has its place, and its start begins with a time of waiting for that.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from headgate.fleets.processes.fleet import ProcessFleet
from headgate.fleets.processes.slot import Slot, Ways
from headgate.fleets.processes.terms import ProcessTerms, filled
from headgate.fleets.ray.cluster import RayChild, RayCluster
from headgate.fleets.ray.options import RayOptions
from headgate.ports.fleet import FleetObserver, Look, Lookup, Phase, WarmUp

NOWHERE: Final = "http://0.0.0.0:0"
"""The address of an endpoint that has no place yet. Nobody asks it: it has not started."""
_POLL_S: Final = 0.5


class RayFleet(ProcessFleet):
    """Made inside a running loop; its owner starts and stops it."""

    def __init__(
        self,
        terms: ProcessTerms,
        ray: RayOptions,
        *,
        endpoints: int,
        endpoints_min: int,
        endpoints_max: int,
        look: Look,
        warm_up: WarmUp,
        lookup: Lookup,
        observer: FleetObserver,
        ports_elsewhere: Callable[[], Collection[int]],
    ) -> None:
        super().__init__(
            terms,
            endpoints=endpoints,
            endpoints_min=endpoints_min,
            endpoints_max=endpoints_max,
            look=look,
            warm_up=warm_up,
            lookup=lookup,
            observer=observer,
            ports_elsewhere=ports_elsewhere,
        )
        self.ray = ray
        self._cluster = RayCluster(ray, log=terms.logs / f"{terms.pool}-ray.log")

    @property
    def driver_pid(self) -> int | None:
        """Of the process that speaks with Ray, while there is one."""
        return self._cluster.pid

    async def stop(self, *, drain: bool = False) -> None:
        await super().stop(drain=drain)
        await self._cluster.stop()

    def _new_slot(self, number: int) -> "RaySlot":
        return RaySlot(number, self._terms, self._ways, self._cluster)

    def _take_port(self) -> int:
        """Chosen where the process runs."""
        return 0


class RaySlot(Slot):
    """A place for one process at a time, wherever Ray has room for it."""

    def __init__(self, number: int, terms: ProcessTerms, ways: Ways, cluster: RayCluster) -> None:
        super().__init__(number, terms, ways)
        self._cluster = cluster

    @property
    def url(self) -> str:
        return self._child.url if isinstance(self._child, RayChild) and self._child.url else NOWHERE

    async def _hold_process(self) -> None:
        """One process, from being ordered to its end or to the moment it is wanted no more."""
        ordering = asyncio.create_task(self._order())
        try:
            while self.wanted and not ordering.done():
                await self._first_of(ordering, within_s=None)
        finally:
            ordering.cancel()
        child = self._child
        if not isinstance(child, RayChild):
            return
        exit_status = asyncio.create_task(child.wait())
        problem: str | None = None
        try:
            await self._until_placed(child, exit_status)
            if exit_status.done():
                problem = "ended before it served"
            elif self.wanted:
                self._watch.begin(Phase.PROCESS)
                # Once more, for it has an address.
                self._name_if_it_is_coming()
                problem = await self._until_ready(exit_status)
            if problem is None and self.wanted:
                problem = await self._serve(exit_status)
        finally:
            exit_status.cancel()
        if problem is not None:
            self._failed(problem)

    async def _order(self) -> None:
        """Orders a process as soon as there is a cluster to order it from, which may take minutes."""
        terms = self._terms
        # Where it runs is known only there, and so is its port.
        values = terms.values(slot=self.number, port=0) | {"port": "{port}"}
        try:
            self._child = await self._cluster.run(
                [filled(word, values) for word in terms.options.command],
                {name: filled(value, values) for name, value in terms.options.environment.items()},
            )
        except OSError as error:
            self._failed(str(error))

    async def _until_placed(self, child: RayChild, exit_status: asyncio.Task[int]) -> None:
        """Until it runs somewhere, or never will, or is wanted no more."""
        told = False
        while self.wanted and not child.url and not exit_status.done():
            await self._first_of(exit_status, within_s=_POLL_S)
            if child.waits_why and not told and not child.url:
                self._ways.observer.troubled(self.id, f"{child.waits_why}; add nodes, or lower scaling.endpoints_max")
                told = True
        if told:
            self._ways.observer.recovered(self.id)

    def _tail(self) -> str:
        """Why it ended, as far as Ray tells, and where more is to be read."""
        child = self._child
        if not isinstance(child, RayChild):
            return ""
        return (f"; {child.problem}" if child.problem else "") + child.hint
