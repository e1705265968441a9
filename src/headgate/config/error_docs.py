"""Where do callers find the pages about outcomes?

The address stands at the end of every error message, so it is a plain one that any reader makes a link of.
"""

import re
from urllib.parse import urlsplit

from headgate.config.problems import Report
from headgate.config.schema import File

_PLAIN = re.compile(r"[\x21-\x7e]+")


def error_docs(file: File, report: Report) -> str:
    """The address without a trailing slash; empty where the file gives none."""
    if file.error_docs is None:
        return ""
    if not _is_plain_address(file.error_docs):
        report.problem(
            ("error_docs",), "is not the address of a folder of pages; write it as https://HOST/PATH, without ? or #"
        )
    return file.error_docs.rstrip("/")


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
