"""What does one process take on, whatever the classes say?"""

from headgate.config.problems import Report
from headgate.config.schema import File
from headgate.config.settings import Limits
from headgate.model.units import Duration

# The official client sends about twenty, and proxies on the way add theirs.
HEADERS_USUAL = 32


def limits(file: File, report: Report) -> Limits:
    section = file.limits
    if section.connections_open_max < section.requests_open_max:
        report.warn(
            ("limits", "connections_open_max"),
            f"is less than requests_open_max {section.requests_open_max}, and each open request has a connection of "
            "its own; raise it, or lower requests_open_max",
        )
    if section.headers_max < HEADERS_USUAL:
        report.warn(
            ("limits", "headers_max"),
            f"leaves out ordinary clients, which send about twenty header lines before proxies add theirs; "
            f"make it {HEADERS_USUAL} at least",
        )
    if section.bodies_bytes_max < section.body_bytes_max:
        report.problem(
            ("limits", "bodies_bytes_max"),
            "is less than body_bytes_max, so the largest body that is accepted could never come in; raise it",
        )
    return Limits(
        body_bytes_max=section.body_bytes_max,
        bodies_bytes_max=section.bodies_bytes_max,
        requests_open_max=section.requests_open_max,
        connections_open_max=section.connections_open_max,
        head_bytes_max=section.head_bytes_max,
        headers_max=section.headers_max,
        head_ns_max=Duration(section.head_max),
        receive_ns_max=Duration(section.receive_max),
        idle_ns_max=Duration(section.idle_max),
        client_stall_ns_max=Duration(section.client_stall_max),
    )
