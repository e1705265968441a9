"""Base URL of the documentation pages for outcomes.

Every error message ends with it, so it must be a plain URL that clients can turn into a link.
"""

import re
from urllib.parse import urlsplit

from headgate.config.problems import ConfigReport
from headgate.config.schema import ConfigFile

_PLAIN = re.compile(r"[\x21-\x7e]+")


def error_docs(file: ConfigFile, report: ConfigReport) -> str:
    """The URL without a trailing slash; empty if the file has none."""
    if file.error_docs_url is None:
        return ""
    if not _is_plain_address(file.error_docs_url):
        report.add_problem(
            ("error_docs_url",),
            "is not a valid base URL; write it as https://HOST/PATH, without ? or #",
        )
    return file.error_docs_url.rstrip("/")


def _is_plain_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        host = url.hostname
        _ = url.port
    except ValueError:
        return False
    return (
        url.scheme in ("http", "https")
        and bool(host)
        and "@" not in url.netloc
        and not re.search("[?#]", text)
        and _PLAIN.fullmatch(text) is not None
    )
