"""Shares and demand of several cells, as rows for `headgate cells status`."""

from collections.abc import Mapping

from headgate.control.cells.assignment import cells_of
from headgate.control.cells.controller_service import ProcessUnavailable
from headgate.control.cells.messages import LeasedShare, ProcessReport
from headgate.control.cells.options import CellFleet
from headgate.model.limits import LimitShare

Reports = Mapping[str, ProcessReport | ProcessUnavailable]


def process_rows(fleet: CellFleet, reports: Reports) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for cell in fleet.cells:
        for url in cell.admin_urls:
            row: dict[str, object] = {"cell": cell.name, "state": cell.state.value, "process": url, "problem": ""}
            match reports[url]:
                case ProcessReport() as report:
                    row |= {"epoch": report.epoch, "leases": len(report.shares)}
                    row["floor_percent"] = report.floor_ppm / 10_000
                case ProcessUnavailable() as problem:
                    row["problem"] = str(problem)
            rows.append(row)
    return rows


def account_rows(fleet: CellFleet, reports: Reports) -> list[dict[str, object]]:
    """Returns a row for each account and cell. A cell without a lease uses the floor."""
    known = {name for each in _reports(reports) for name in (*each.demand, *each.shares)}
    rows: list[dict[str, object]] = []
    for account in sorted(known):
        assigned = cells_of(account, fleet)
        for cell in fleet.cells:
            own = [each for url in cell.admin_urls if isinstance(each := reports[url], ProcessReport)]
            demand = [each.demand[account] for each in own if account in each.demand]
            leases = [each.shares[account] for each in own if account in each.shares]
            if cell.name not in assigned and not leases:
                continue
            share = believed_share(fleet, reports, cell.name, account) or LimitShare(0, 0)
            rows.append(
                {
                    "tenant": account,
                    "cell": cell.name,
                    "share_percent": share.requests_ppm / 10_000 if own else None,
                    "token_share_percent": share.tokens_ppm / 10_000 if own else None,
                    "expires_in_s": round(min(each.left_ns for each in leases) / 1e9, 1) if leases else None,
                    "arrived": sum(each.arrived for each in demand),
                    "open": sum(each.open for each in demand),
                    "assigned": "yes" if cell.name in assigned else "no",
                }
            )
    return rows


def believed_share(fleet: CellFleet, reports: Reports, cell: str, account: str) -> LimitShare | None:
    """Returns the highest share of each kind that a process of the cell uses. None if a process did not report."""
    known = fleet.cell(cell)
    found = [] if known is None else [reports[url] for url in known.admin_urls]
    own = [each for each in found if isinstance(each, ProcessReport)]
    if not own or len(own) < len(found):
        return None
    shares = [each.shares.get(account, LeasedShare(each.floor_ppm, 0)) for each in own]
    return LimitShare(max(each.ppm for each in shares), max(each.tokens for each in shares))


def _reports(reports: Reports) -> list[ProcessReport]:
    return [each for each in reports.values() if isinstance(each, ProcessReport)]
