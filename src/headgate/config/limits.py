"""Connection and request limits for one process."""

from headgate.config.fill import fill, given_settings
from headgate.config.problems import ConfigReport
from headgate.config.schema import ConfigFile
from headgate.edge.options import EdgeLimits

# The official OpenAI client sends about twenty headers, and proxies add more.
HEADERS_TYPICAL = 32


def edge_limits(file: ConfigFile, report: ConfigReport) -> EdgeLimits:
    section = file.limits
    if section.connections_open_max < section.requests_open_max:
        report.add_warning(
            ("limits", "connections_open_max"),
            f"is less than requests_open_max {section.requests_open_max}, but each open request needs a connection; "
            "raise it, or lower requests_open_max",
        )
    if section.header_count_max < HEADERS_TYPICAL:
        report.add_warning(
            ("limits", "header_count_max"),
            "rejects common clients, which send about twenty headers, and proxies add more; "
            f"raise it to at least {HEADERS_TYPICAL}",
        )
    for name, size_max in (
        ("body_bytes_max", section.body_bytes_max),
        ("audio_body_bytes_max", section.audio_body_bytes_max),
    ):
        if size_max is not None and section.total_body_bytes_max < size_max:
            report.add_problem(
                ("limits", "total_body_bytes_max"),
                f"is less than {name}, so a body of the maximum size is never accepted; raise it",
            )
    return fill(EdgeLimits, given_settings(section))
