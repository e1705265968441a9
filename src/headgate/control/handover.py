"""Hands over the scheduler role of a cell on an operator's request.

The process stays a candidate and claims the lease again after a pause. If no other process has taken over by then, it
becomes the scheduler again, so nothing has to be undone.
"""

from collections.abc import Mapping

from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.protocol.views import CellView, MemberPresence
from headgate.model.units import SECOND, Duration
from headgate.ports.directory import Actor, ChangeRejected, OverrideStore


class HandoverService:
    def __init__(self, host: CellHost, store: OverrideStore, *, gateways_are_candidates: bool) -> None:
        """`store` holds the audit log."""
        self._host = host
        self._store = store
        self._gateways_are_candidates = gateways_are_candidates

    async def hand_over(self, actor: Actor, *, pause_s: int, reason: str) -> Mapping[str, object]:
        view = self._host.view()
        self._check(view)
        before = view.epoch
        assert before is not None, "a scheduler follows its own epoch"
        after = {"epoch": before.number, "pause_s": pause_s, "reason": reason}
        await self._store.add_audit_entry(actor, "cell.hand_over", self._host.name, after=after)
        # While the entry was being written, the scheduler may have changed.
        if not self._host.step_down(Duration(pause_s * SECOND)):
            # The audit log cannot be changed, so a second entry says that the act did not happen.
            failed = {**after, "problem": "this process was no longer the scheduler"}
            await self._store.add_audit_entry(actor, "cell.hand_over_failed", self._host.name, after=failed)
            raise ChangeRejected("this process stopped being the cell's scheduler in the meantime; retry")
        return {"member": self._host.name, "epoch": before.number, "pause_s": pause_s}

    def _check(self, view: CellView) -> None:
        if not view.is_leader:
            scheduler = "none is known" if view.epoch is None else f"it is {view.epoch.id.rpartition('/')[0]}"
            raise ChangeRejected(f"this process is not the cell's scheduler; {scheduler}; send the request there")
        if view.is_gathering:
            raise ChangeRejected("the scheduler is still taking over; retry in a second")
        others = [
            name
            for name, each in view.members.items()
            if name != self._host.name
            and each.presence is MemberPresence.PRESENT
            and (self._gateways_are_candidates or not each.serves)
        ]
        if not others:
            raise ChangeRejected("no other candidate is present, so nothing could take over; start another one")
