"""`headgate cells`: the file and the map for the load balancer."""

import json
from pathlib import Path

import pytest

from headgate.cli.cells import FleetWatch
from tests.cli.conftest import Headgate

FLEET = """\
cells:
  east: {url: "http://east:8080", admin_urls: ["http://127.0.0.1:1"]}
  west: {url: "https://west", weight: 50}
  north: {url: "http://north:8080", state: draining}
pins:
  acme: [west, east]
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "cells.yaml"
    file.write_text(FLEET)
    return file


def test_check_shows_the_cells_and_how_many_tenants_each_has(fleet: Path, headgate: Headgate) -> None:
    (fleet.parent / "names").write_text("acme\nbolt/search\nbolt\n\n")
    said = headgate("cells", "check", "--tenants", "names")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "3 cells, 2 per tenant, share floor 25 %"
    assert lines[1].startswith("east: active, weight 100, 1 admin listener; 2 tenants, ")
    assert "north: draining, weight 100, 0 admin listeners; 0 tenants, 0 of them first" in lines
    assert "warning: cells.yaml: cells.west: has no admin_urls, so it always uses the share floor" in lines

    told = json.loads(headgate("cells", "check", "--json").out)
    assert told["ok"]
    assert [(each["cell"], each["state"], each["tenants_first"]) for each in told["cells"]] == [
        ("east", "active", 0),
        ("west", "active", 1),
        ("north", "draining", 0),
    ]


def test_check_reports_problems(fleet: Path, headgate: Headgate) -> None:
    fleet.write_text("cells: {}")
    said = headgate("cells", "check")
    assert (said.code, said.out) == (1, "")
    assert "cells.yaml:1: cells: has 0 cells" in said.err
    assert "does not exist" in headgate("cells", "check", "--file", "none.yaml").err


def test_map_lists_each_tenants_cells_in_order(fleet: Path, headgate: Headgate) -> None:
    told = json.loads(headgate("cells", "map").out)
    assert told["tenants"] == {"acme": ["west", "east"]}
    assert set(told["default"]) == {"east", "west"}
    assert told["cells"]["north"] == {"url": "http://north:8080", "state": "draining"}


def test_nginx_map_has_one_upstream_per_order_of_cells(fleet: Path, headgate: Headgate) -> None:
    said = headgate("cells", "map", "--format", "nginx")
    assert '    "acme" headgate_then_west_then_east;' in said.out
    assert (
        "upstream headgate_then_west_then_east {\n    server west:443;\n    server east:8080 backup;\n}\n" in said.out
    )


def test_envoy_map_routes_a_tenant_to_an_aggregate_of_its_cells(fleet: Path, headgate: Headgate) -> None:
    told = json.loads(headgate("cells", "map", "--format", "envoy").out)
    first = told["routes"][0]
    assert first["match"]["headers"][0]["string_match"] == {"exact": "acme"}
    clusters = {each["name"]: each for each in told["clusters"]}
    aggregate = clusters[first["route"]["cluster"]]
    assert aggregate["cluster_type"]["typed_config"]["clusters"] == ["headgate_cell_west", "headgate_cell_east"]
    assert clusters["headgate_cell_west"]["transport_socket"]["typed_config"]["sni"] == "west"
    assert "transport_socket" not in clusters["headgate_cell_east"]


@pytest.mark.parametrize(("names", "problem"), [("a b\n", '"a b" is not a tenant'), (None, "cannot read names")])
def test_invalid_list_of_tenants_is_rejected(fleet: Path, headgate: Headgate, names: str | None, problem: str) -> None:
    if names is not None:
        (fleet.parent / "names").write_text(names)
    said = headgate("cells", "map", "--tenants", "names")
    assert said.code == 2
    assert problem in said.err


# Commands that contact the gateways


@pytest.mark.parametrize("action", [("status",), ("run",), ("move", "acme", "--to", "east")])
def test_operator_key_is_required(
    fleet: Path, headgate: Headgate, monkeypatch: pytest.MonkeyPatch, action: tuple[str, ...]
) -> None:
    monkeypatch.delenv("HEADGATE_ADMIN_KEY", raising=False)
    said = headgate("cells", *action)
    assert said.code == 1
    assert "HEADGATE_ADMIN_KEY is not set; export an operator key with the permission shares" in said.err
    assert fleet.read_text() == FLEET


def test_operator_key_is_not_required_if_each_cell_has_its_own(
    fleet: Path, headgate: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_ADMIN_KEY", raising=False)
    assert "(missing: east)" in headgate("cells", "status").err
    fleet.write_text(FLEET.replace("east: {", "east: {admin_key: hg-east, "))
    assert "HEADGATE_ADMIN_KEY" not in headgate("cells", "status").err


def test_list_is_read_again_when_a_file_that_it_refers_to_changes(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = fleet.parent / "key"
    key.write_text("hg-1")
    fleet.write_text(FLEET.replace("east: {", "east: {admin_key: '${file:key}', "))
    watch = FleetWatch(fleet, (key,))
    assert watch.changed() is None
    key.write_text("hg-second")
    changed = watch.changed()
    assert changed is not None
    assert changed.cells[0].admin_key == "hg-second"
    assert watch.changed() is None

    key.unlink()
    assert watch.changed() is None
    assert "does not exist" in capsys.readouterr().err
    key.write_text("hg-3")
    changed = watch.changed()
    assert changed is not None
    assert changed.cells[0].admin_key == "hg-3"


def test_status_reports_gateways_that_do_not_respond(
    fleet: Path, headgate: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "hg-operator")
    said = headgate("cells", "status", "--json")
    assert said.code == 1
    [row] = json.loads(said.out)["processes"]
    assert (row["cell"], row["process"]) == ("east", "http://127.0.0.1:1")
    assert "127.0.0.1:1" in row["problem"]
    assert "no gateway reports a tenant with limits" in headgate("cells", "status").err


def test_move_writes_the_pin_and_reports_that_the_cells_have_no_room(
    fleet: Path, headgate: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "hg-operator")
    said = headgate("cells", "move", "acme/search", "--to", "east", "--wait", "1")
    assert said.code == 1
    assert "acme: moving from west, east to east" in said.err
    assert "check that `headgate cells run` is running" in said.err
    assert "  acme: [east]\n" in fleet.read_text()


def test_move_rejects_unknown_cells_and_leaves_the_file_unchanged(
    fleet: Path, headgate: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "hg-operator")
    said = headgate("cells", "move", "acme", "--to", "moon")
    assert said.code == 1
    assert 'cell "moon" does not exist' in said.err
    assert fleet.read_text() == FLEET
