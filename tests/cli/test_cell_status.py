"""What `headgate status` prints about a cell."""

from dataclasses import dataclass, field

import pytest

from headgate.cli.output.cell_status import CellState, MemberState, ProtocolState, cell_lines


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
        Case({"scheduler": "b"}, ("cell main, member a: follows scheduler b, epoch 7",)),
        Case({"leads": True, "members": {"a": PRESENT, "b": PRESENT}}, ("scheduler of 2 gateways, epoch 7",)),
        Case({"mode": "island"}, ("ISLAND", "1/2 share")),
        Case({"mode": "seeking", "epoch": None}, ("no scheduler has responded yet",)),
        Case(
            {"store": "away", "store_problem": "it is gone; start it"}, ("store unreachable: it is gone; start it",), 2
        ),
        Case({"leads": True, "members": {"b": MemberState("absent")}}, ("b is absent; their shares stay reserved",), 2),
        Case(
            {"leads": True, "staged": "new", "members": {"a": PRESENT, "b": MemberState("present", "old")}},
            ("configuration new is staged, waiting for b",),
            2,
        ),
        Case(
            {"protocol": ProtocolState(4, 3), "members": {"b": MemberState("present", protocol=3)}},
            ("protocol version 4; other processes still use version 3: b",),
            2,
        ),
        Case({"protocol": ProtocolState(4, 3)}, ("other processes still use version 3",), 2),
        Case({"protocol": ProtocolState(4, 4)}, ("follows scheduler",)),
        Case(
            {
                "leads": True,
                "members": {"a": MemberState("present", "new"), "b": MemberState("present", "old", policy_for_s=61.2)},
            },
            ("b has had configuration old for at least 61 s",),
            3,
        ),
    ],
)
def test_cell_lines_show_role_and_problems(case: Case) -> None:
    said = list(cell_lines(CellState(**{**USUAL, **case.state})))

    assert len(said) == case.lines
    assert [part for part in case.says if part not in "\n".join(said)] == []
