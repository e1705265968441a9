"""The assignment of tenants to cells, as JSON or as configuration for nginx and Envoy.

The proxy must know the tenant before it forwards a request. In nginx, set `$headgate_tenant`. Envoy matches the header
`x-headgate-cell-tenant`, which an earlier filter has to set.
"""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from headgate.control.cells.assignment import cells_of, ranked
from headgate.control.cells.options import CellFleet, FleetCell, FleetCellState

TENANT_HEADER = "x-headgate-cell-tenant"
_NGINX_VARIABLE = "headgate_tenant"
_HTTPS_PORT, _HTTP_PORT = 443, 80


def map_data(fleet: CellFleet, tenants: Iterable[str]) -> dict[str, object]:
    """Returns each tenant's cells in order of preference, and the cells for unknown tenants."""
    return {
        "cells": {each.name: {"url": each.url, "state": each.state.value} for each in fleet.cells},
        "tenants": {name: list(cells_of(name, fleet)) for name in sorted(set(tenants))},
        "default": list(_default_cells(fleet)),
    }


def nginx_lines(fleet: CellFleet, tenants: Iterable[str]) -> list[str]:
    """Returns a `map` from the tenant to an upstream, and the upstreams. Their first server is the preferred cell."""
    routes = {name: cells_of(name, fleet) for name in sorted(set(tenants))}
    default = _default_cells(fleet)
    lines = [f"map ${_NGINX_VARIABLE} $headgate_upstream {{", f"    default {_group(default)};"]
    lines += [f'    "{name}" {_group(cells)};' for name, cells in routes.items()]
    lines.append("}")
    for cells in sorted({default, *routes.values()}):
        servers = [_address(cell) for name in cells if (cell := fleet.cell(name)) is not None]
        lines += ["", f"upstream {_group(cells)} {{"]
        lines += [f"    server {each}{' backup' if number else ''};" for number, each in enumerate(servers)]
        lines.append("}")
    return lines


def envoy_data(fleet: CellFleet, tenants: Iterable[str]) -> dict[str, object]:
    """Returns routes and clusters: one cluster per cell, and one aggregate cluster per order of cells."""
    routes = {name: cells_of(name, fleet) for name in sorted(set(tenants))}
    default = _default_cells(fleet)
    matches = [
        {"match": {"prefix": "/", "headers": [_header_match(name)]}, "route": _route(cells)}
        for name, cells in routes.items()
    ]
    groups = sorted({default, *routes.values()})
    return {
        "routes": [*matches, {"match": {"prefix": "/"}, "route": _route(default)}],
        "clusters": [
            *(_cluster(each) for each in fleet.cells),
            *(_aggregate(cells) for cells in groups),
        ],
    }


def _default_cells(fleet: CellFleet) -> tuple[str, ...]:
    """Returns the cells for a tenant that is not in the map. Such a request is usually rejected for its key."""
    return ranked("", (each for each in fleet.cells if each.state is FleetCellState.ACTIVE))[: fleet.cells_per_tenant]


def _group(cells: Sequence[str]) -> str:
    return "_then_".join(("headgate", *cells))


def _address(cell: FleetCell) -> str:
    parts = urlsplit(cell.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (_HTTPS_PORT if parts.scheme == 'https' else _HTTP_PORT)}"


def _header_match(tenant: str) -> Mapping[str, object]:
    return {"name": TENANT_HEADER, "string_match": {"exact": tenant}}


def _route(cells: Sequence[str]) -> Mapping[str, object]:
    # 503 and failed connections are retried in the next cell.
    return {
        "cluster": _group(cells),
        "timeout": "0s",
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": max(1, len(cells) - 1),
            "retry_priority": {
                "name": "envoy.retry_priorities.previous_priorities",
                "typed_config": {
                    "@type": "type.googleapis.com/"
                    "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                    "update_frequency": 1,
                },
            },
        },
    }


def _cluster(cell: FleetCell) -> Mapping[str, object]:
    parts = urlsplit(cell.url)
    port = parts.port or (_HTTPS_PORT if parts.scheme == "https" else _HTTP_PORT)
    address = {"socket_address": {"address": parts.hostname, "port_value": port}}
    tls: Mapping[str, object] = {} if parts.scheme == "http" else {"transport_socket": _tls(parts.hostname or "")}
    return {
        "name": f"headgate_cell_{cell.name}",
        **tls,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "2s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/health/ready"},
            }
        ],
        "load_assignment": {
            "cluster_name": f"headgate_cell_{cell.name}",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _tls(host: str) -> Mapping[str, object]:
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    return {"name": "envoy.transport_sockets.tls", "typed_config": {"@type": kind, "sni": host}}


def _aggregate(cells: Sequence[str]) -> Mapping[str, object]:
    return {
        "name": _group(cells),
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                "clusters": [f"headgate_cell_{name}" for name in cells],
            },
        },
    }
