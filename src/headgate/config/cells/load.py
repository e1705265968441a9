"""Loads `cells.yaml`.

The steps are those of the gateway's configuration file (config/load.py).
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from headgate.config import schema_reader, yaml_document
from headgate.config.cells.schema import CellsFile, FleetCellSection
from headgate.config.engine_tls import client_tls
from headgate.config.enum_values import parse_enum
from headgate.config.environment import References
from headgate.config.load import read_text
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.quantities import duration_text
from headgate.config.references import NAME_RULE, ReferenceChecker, is_name
from headgate.config.setting_types import PPM_PER_PERCENT
from headgate.control.cells.options import CellFleet, FleetCell, FleetCellState
from headgate.model.units import Duration
from headgate.ports.tls import ClientTlsOptions

MISSING_HINT = "docs/guides/several-cells.md has an example"
CELLS_MAX = 256
ROUNDS_PER_LEASE_MIN = 4
"""Minimum number of rounds in which a lease can be renewed before it expires."""


def load_cells(path: Path, environ: Mapping[str, str]) -> CellFleet:
    """Reads the file. Raises `ConfigErrors` with all problems."""
    return read_cells(path, environ)[0]


def read_cells(path: Path, environ: Mapping[str, str]) -> tuple[CellFleet, tuple[Path, ...]]:
    """Like `load_cells`. Also returns the files that values refer to."""
    references = References(environ, path.parent)
    fleet = parse_cells(read_text(path, missing=MISSING_HINT), path, references)
    return fleet, tuple(references.files)


def parse_cells(text: str, path: Path, references: References) -> CellFleet:
    """Like `load_cells`, for the text of the file at this path."""
    report = ConfigReport(str(path))
    file = schema_reader.read(yaml_document.parse(text, report), CellsFile, references, report)
    _check_size(file, report)
    _check_times(file, report)
    admin_tls = client_tls(file.admin_tls, ("admin_tls",), path.parent, report)
    cells = tuple(_cell(name, section, admin_tls, report) for name, section in file.cells.items())
    _check_pins(file, report)
    fleet = CellFleet(
        cells=cells,
        cells_per_tenant=file.cells_per_tenant,
        share_floor_ppm=file.share_floor_percent * PPM_PER_PERCENT,
        interval_ns=Duration(file.interval),
        lease_ns=Duration(file.lease),
        pins={name: tuple(cells) for name, cells in file.pins.items()},
    )
    report.raise_if_invalid()
    return fleet


def _check_size(file: CellsFile, report: ConfigReport) -> None:
    if not 1 <= len(file.cells) <= CELLS_MAX:
        report.add_problem(("cells",), f"has {len(file.cells)} cells; define between 1 and {CELLS_MAX}")
    if file.cells and all(each.state in (FleetCellState.DRAINING, FleetCellState.LOST) for each in file.cells.values()):
        report.add_problem(("cells",), "has no active cell, so no tenant can be served; set the state of one to active")
    floors = 2 * file.cells_per_tenant * file.share_floor_percent
    if floors > 100:
        most = 100 // (2 * file.cells_per_tenant)
        wrong = f"is {file.share_floor_percent}, so the old and new cells of a moving tenant could use {floors} %"
        report.add_problem(("share_floor_percent",), f"{wrong} of its limits; set at most {most}")


def _check_times(file: CellsFile, report: ConfigReport) -> None:
    if file.lease < ROUNDS_PER_LEASE_MIN * file.interval:
        least = duration_text(ROUNDS_PER_LEASE_MIN * file.interval)
        wrong = f"is too short to be renewed every {duration_text(file.interval)} even if messages are lost"
        report.add_problem(("lease",), f"{wrong}; set at least {least}, or shorten interval")


def _cell(name: str, section: FleetCellSection, common_tls: ClientTlsOptions | None, report: ConfigReport) -> FleetCell:
    place = ("cells", name)
    if not is_name(name):
        report.add_problem(place, NAME_RULE, contents_valid=True)
    _check_url(section.url, (*place, "url"), report)
    for number, url in enumerate(section.admin_urls):
        _check_url(url, (*place, "admin_urls", number), report)
        if url in section.admin_urls[:number]:
            report.add_problem((*place, "admin_urls", number), f"{url} is listed twice; remove one")
    state = parse_enum(FleetCellState, section.state, FleetCellState.ACTIVE, (*place, "state"), report)
    admin_urls = tuple(url.rstrip("/") for url in section.admin_urls)
    own_tls = client_tls(section.admin_tls, (*place, "admin_tls"), Path(report.file).parent, report)
    has_https = any(url.startswith("https://") for url in admin_urls)
    if own_tls is not None and not has_https:
        wrong = "has no effect, because no admin URL of the cell uses https; use https in admin_urls, or remove it"
        report.add_problem((*place, "admin_tls"), wrong)
    return FleetCell(
        name,
        section.url.rstrip("/"),
        admin_urls,
        section.weight,
        state,
        admin_key=section.admin_key,
        admin_tls=(own_tls or common_tls) if has_https else None,
    )


def _check_url(url: str, place: SettingPath, report: ConfigReport) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid, parts = False, urlsplit("")
    if not valid or parts.username or parts.path.strip("/") or parts.query or parts.fragment:
        report.add_problem(place, f'"{url}" is not a base URL; write http://HOST:PORT or https://HOST:PORT')


def _check_pins(file: CellsFile, report: ConfigReport) -> None:
    check = ReferenceChecker(report)
    for tenant, cells in file.pins.items():
        place = ("pins", tenant)
        if not is_name(tenant):
            report.add_problem(place, f"is not the first component of a tenant path; {NAME_RULE}", contents_valid=True)
        check.check_all_known(cells, file.cells, "cell", place)
        if len(cells) not in range(1, file.cells_per_tenant + 1):
            wrong = f"has {len(cells)} cells; list 1 to {file.cells_per_tenant}, or raise cells_per_tenant"
            report.add_problem(place, wrong)
