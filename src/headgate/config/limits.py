"""What does one process take on, whatever the classes say?"""

from headgate.config.fill import fill, given
from headgate.config.problems import Report
from headgate.config.schema import File
from headgate.edge.options import EdgeLimits

# The official client sends about twenty, and proxies on the way add theirs.
HEADERS_USUAL = 32


def limits(file: File, report: Report) -> EdgeLimits:
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
    return fill(EdgeLimits, given(section))
