"""Reading `cells.yaml`, and changing pins in it."""

from pathlib import Path

import pytest

from headgate.config.cells.edit import set_pin
from headgate.config.cells.load import parse_cells, read_cells
from headgate.config.edit import EditNotPossible
from headgate.config.environment import References
from headgate.config.problems import ConfigErrors
from headgate.control.cells.options import CellFleet, FleetCell, FleetCellState
from headgate.ports.tls import ClientTlsOptions

TWO = """\
cells:
  east: {url: "http://east:8080/", admin_urls: ["http://east-1:9090", "http://east-2:9090/"]}
  west: {url: "https://west", weight: 50, state: draining}
"""


def parsed(text: str) -> CellFleet:
    return parse_cells(text, Path("cells.yaml"), References({"HOST": "east", "KEY": "hg-east"}, Path()))


def problems(text: str) -> str:
    with pytest.raises(ConfigErrors) as found:
        parsed(text)
    return str(found.value)


def test_file_with_only_cells_gets_the_defaults() -> None:
    fleet = parsed(TWO)
    assert fleet == CellFleet(
        (
            FleetCell("east", "http://east:8080", ("http://east-1:9090", "http://east-2:9090")),
            FleetCell("west", "https://west", (), 50, FleetCellState.DRAINING),
        )
    )
    assert (fleet.cells_per_tenant, fleet.share_floor_ppm) == (2, 250_000)
    assert (fleet.interval_ns, fleet.lease_ns) == (2_000_000_000, 15_000_000_000)


def test_all_settings_are_read() -> None:
    text = TWO.replace("east:8080/", "${HOST}:8080") + (
        "cells_per_tenant: 3\nshare_floor_percent: 10\ninterval: 500ms\nlease: 4s\npins: {acme: [west, east]}\n"
    )
    fleet = parsed(text)
    assert fleet.cells[0].url == "http://east:8080"
    assert (fleet.cells_per_tenant, fleet.share_floor_ppm) == (3, 100_000)
    assert (fleet.interval_ns, fleet.lease_ns) == (500_000_000, 4_000_000_000)
    assert fleet.pins == {"acme": ("west", "east")}


def test_keys_and_certificates_of_admin_listeners_are_read_for_each_cell(tmp_path: Path) -> None:
    (tmp_path / "west-key").write_text("hg-west\n")
    file = tmp_path / "cells.yaml"
    file.write_text(
        "admin_tls: {ca: ca.pem, certificate: controller.pem, key: controller.key}\n"
        "cells:\n"
        "  east: {url: 'http://e', admin_urls: ['https://e1:9090'], admin_key: '${KEY}'}\n"
        "  west:\n"
        "    url: http://w\n"
        "    admin_urls: ['https://w1:9090']\n"
        "    admin_key: ${file:west-key}\n"
        "    admin_tls: {ca: west.pem, server_name: west.internal}\n"
        "  north: {url: 'http://n', admin_urls: ['http://n1:9090']}\n"
    )
    fleet, files = read_cells(file, {"KEY": "hg-east"})
    assert [each.admin_key for each in fleet.cells] == ["hg-east", "hg-west", None]
    common = ClientTlsOptions(*(str(tmp_path / name) for name in ("ca.pem", "controller.pem", "controller.key")))
    west = ClientTlsOptions(str(tmp_path / "west.pem"), server_name="west.internal")
    assert [each.admin_tls for each in fleet.cells] == [common, west, None]
    assert files == (tmp_path / "west-key",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "cells: {a: {url: 'http://a', admin_urls: ['http://a:1'], admin_tls: {ca: a.pem}}}",
            "cells.a.admin_tls: has no effect, because no admin URL of the cell uses https",
        ),
        (
            "cells: {a: {url: 'http://a', admin_urls: ['https://a:1'], admin_tls: {key: a.key}}}",
            "cells.a.admin_tls.certificate: missing; set the PEM file",
        ),
        ("cells: {a: {url: 'http://a', admin_key: ''}}", "cells.a.admin_key: expected a non-empty string"),
        ("cells: {a: {url: 'http://a', admin_key: '${NONE}'}}", "the environment variable NONE is not set"),
        ("cells: {}", "cells.yaml:1: cells: has 0 cells; define between 1 and 256"),
        ("cells: {a: {}}", "cells.a.url: missing; set the URL to which the load balancer sends requests"),
        ("cells: {a: {url: 'ftp://a'}}", '"ftp://a" is not a base URL'),
        ("cells: {a: {url: 'http://a/v1'}}", '"http://a/v1" is not a base URL'),
        ("cells: {a: {url: 'http://a:99999'}}", "is not a base URL"),
        ("cells: {a: {url: 'http://a', state: gone}}", 'cells.a.state: "gone" is not a valid value'),
        ("cells: {a: {url: 'http://a', state: lost}}", "has no active cell"),
        ("cells: {a b: {url: 'http://a'}}", "a name must have 1 to 64 characters"),
        (
            "cells: {a: {url: 'http://a', admin_urls: ['http://a:1', 'http://a:1']}}",
            "cells.a.admin_urls[1]: http://a:1 is listed twice",
        ),
        (TWO + "cells_per_tenant: 3\n", "share_floor_percent: is 25, so the old and new cells of a moving tenant"),
        (TWO + "lease: 5s\n", "lease: is too short to be renewed every 2s even if messages are lost; set at least 8s"),
        (TWO + "pins: {acme: [north]}\n", 'pins.acme[0]: cell "north" does not exist'),
        (TWO + "pins: {acme/x: [east]}\n", "is not the first component of a tenant path"),
        (TWO + "pins: {acme: []}\n", "pins.acme: has 0 cells; list 1 to 2"),
        (TWO + "pin: {}\n", "pin: unknown key"),
    ],
)
def test_problem_is_reported_with_the_next_step(text: str, problem: str) -> None:
    assert problem in problems(text)


@pytest.mark.parametrize(
    "text",
    [
        TWO,
        TWO + "pins:\n  acme: [west]   # see the ticket\n  bolt: [east]\n",
        TWO + "pins:\n  bolt: [east]\n",
        TWO + "pins: {bolt: [east]}\ninterval: 1s\n",
        TWO + "pins: {}\n",
        TWO + "pins:\ninterval: 1s\n",
    ],
)
def test_pin_is_set_without_changing_the_rest_of_the_file(text: str) -> None:
    edited = set_pin(text, "acme", ("east", "west"))
    before, after = parsed(text), parsed(edited)
    assert after.pins == {**before.pins, "acme": ("east", "west")}
    assert after.cells == before.cells
    assert after.interval_ns == before.interval_ns
    assert all(line in edited for line in text.splitlines() if "#" in line and "acme" not in line)


def test_pin_is_not_set_if_the_layout_cannot_be_edited() -> None:
    with pytest.raises(EditNotPossible):
        set_pin("cells: [", "acme", ("east",))
    with pytest.raises(EditNotPossible):
        set_pin(TWO + "pins: east\n", "acme", ("east",))
