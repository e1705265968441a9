"""Does `headgate status` say in words what part a gateway takes in its cell, and what is wrong?"""

from dataclasses import dataclass, field

import pytest

from headgate.cli.output.cell_status import CellState, MemberState, cell_lines


@dataclass
class Case:
    state: dict[str, object]
    says: tuple[str, ...]
    lines: int = field(default=1)


USUAL = {"name": "main", "member": "a", "mode": "following", "leads": False, "share": "1/2", "store": "up", "epoch": 7}
PRESENT = MemberState("present", "old", "new")


@pytest.mark.parametrize(
    "case",
    [
        Case({"scheduler": "b"}, ("cell main, member a: it follows the scheduler b, epoch 7",)),
        Case(
            {"leads": True, "members": {"a": PRESENT, "b": PRESENT}}, ("it is the scheduler, epoch 7, of 2 gateways",)
        ),
        Case({"mode": "island"}, ("an ISLAND", "share 1/2")),
        Case({"mode": "seeking", "epoch": None}, ("no scheduler has answered yet",)),
        Case(
            {"store": "away", "store_problem": "it is gone; start it"}, ("the store is away: it is gone; start it",), 2
        ),
        Case({"leads": True, "members": {"b": MemberState("absent")}}, ("b is absent: what they may take is kept",), 2),
        Case(
            {"leads": True, "staged": "new", "members": {"a": PRESENT, "b": MemberState("present", "old")}},
            ("configuration new has been read here, not yet by b",),
            2,
        ),
    ],
)
def test_what_matters_is_said(case: Case) -> None:
    said = list(cell_lines(CellState(**{**USUAL, **case.state})))

    assert len(said) == case.lines
    assert [part for part in case.says if part not in "\n".join(said)] == []
