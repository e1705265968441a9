"""The committed HTML pages match the Markdown pages in docs."""

import io
from contextlib import redirect_stdout
from pathlib import Path

from tests.house.small_tree import PROJECT, script

PAGES = PROJECT / "src" / "headgate" / "edge" / "pages"
BYTES_MAX = 1_500_000


def checked(directory: Path) -> tuple[int, str]:
    """Run the generator script with --check; return its exit status and output."""
    complaints = io.StringIO()
    with redirect_stdout(complaints):
        status = script("write_html_pages").main(["--check", str(directory)])
    return status, complaints.getvalue()


def test_committed_html_pages_are_up_to_date() -> None:
    assert checked(PAGES) == (0, "")


def test_check_reports_missing_outdated_and_left_over_pages(tmp_path: Path) -> None:
    with redirect_stdout(io.StringIO()):
        assert script("write_html_pages").main([str(tmp_path)]) == 0
    (tmp_path / "errors" / "shed.html").unlink()
    (tmp_path / "errors" / "queue_full.html").write_text("changed")
    (tmp_path / "docs" / "old.html").write_text("left over")

    status, complaints = checked(tmp_path)

    assert status == 1
    assert [line.partition(":")[0] for line in complaints.splitlines()] == [
        "errors/queue_full.html",
        "errors/shed.html",
        "docs/old.html",
    ]


def test_committed_html_pages_stay_small() -> None:
    assert sum(path.stat().st_size for path in PAGES.rglob("*.html")) < BYTES_MAX
