"""Write the generated parts of the outcome pages in docs/reference/errors.

Each outcome has a page. The part between two markers describes the HTTP reply and is generated from
src/headgate/model/outcome.py. The rest is written by hand. The list of all outcomes in docs/reference/errors/README.md
is generated from the same table and the first sentence of each page.

Usage: write_error_pages.py [--check] [DIRECTORY]. With --check the script writes nothing and exits with status 1 if a
page is out of date.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from headgate.core.admission.retry_after import RETRY_AFTER_MIN, retry_after_max
from headgate.edge.error_replies import INTERRUPTED_OUTCOMES
from headgate.model.outcome import HTTP_REPLIES, STREAM_INTERRUPTED, HttpReply, Outcome, RetryAfter
from headgate.model.units import SECOND

FOLDER = Path(__file__).parent.parent / "docs" / "reference" / "errors"
INDEX = "README.md"
BEGIN = "<!-- written by scripts/write_error_pages.py: change src/headgate/model/outcome.py instead -->"
END = "<!-- from here on written by people -->"
HEADINGS = ("What the caller sees", "Why it happens", "What the caller can do", "What the operator can do")

_RETRY_AFTER = {RetryAfter.ABSENT: "not sent", RetryAfter.ONE_SECOND: "1 s"}
_COMPUTED = "computed for each response, from {} to {} s"
_SHOULD_RETRY = {None: "not sent: the client decides", True: "`true`", False: "`false`"}
# Outcomes for which callers do not receive the HTTP reply shown in the table.
_SPECIAL_REPLIES = {
    Outcome.COMPLETED: {"status": "the engine's, usually 200", "error": "none"},
    Outcome.CANCELLED: {"status": "none is sent; 499 in records", "error": "none"},
    Outcome.ENGINE_REJECTED: {
        "status": "the engine's own",
        "error": "the engine's own body, as it came",
        "`Retry-After`": "not sent",
        "`x-should-retry`": "`false`",
    },
}


def rows(outcome: Outcome) -> dict[str, str]:
    if outcome in _SPECIAL_REPLIES:
        return _SPECIAL_REPLIES[outcome]
    face = HTTP_REPLIES[outcome]
    shown = {
        "status": str(face.status),
        "`code`": f"`{face.code}`",
        "`type`": f"`{face.type}`",
        "`Retry-After`": _RETRY_AFTER.get(
            face.retry_after, _COMPUTED.format(RETRY_AFTER_MIN // SECOND, retry_after_max(outcome) // SECOND)
        ),
        "`x-should-retry`": _SHOULD_RETRY[face.should_retry],
    }
    if outcome in INTERRUPTED_OUTCOMES:
        shown["in a stream that has begun"] = in_stream(STREAM_INTERRUPTED)
    return shown


def in_stream(face: HttpReply) -> str:
    return f"an error event with `code` `{face.code}` and `type` `{face.type}`, no `[DONE]`"


def facts(outcome: Outcome) -> str:
    lines = [f"## {HEADINGS[0]}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows(outcome).items()]
    return "\n".join(lines)


def index(texts: dict[Outcome, str]) -> str:
    lines = ["| outcome | status | `code` | what it means |", "|---|---|---|---|"]
    for outcome, text in texts.items():
        shown = rows(outcome)
        code = shown.get("`code`", "")
        lines.append(f"| [{outcome}]({outcome}.md) | {shown['status']} | {code} | {first_sentence(text)} |")
    return "\n".join(lines)


def first_sentence(page: str) -> str:
    """Paragraph below the title."""
    return " ".join(page.split("\n\n")[1].split())


def rewritten(page: str, between: str) -> str:
    found = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert len(found.findall(page)) == 1, "a page needs both markers, once"
    return found.sub(lambda _: f"{BEGIN}\n\n{between}\n\n{END}", page)


def skeleton(outcome: Outcome) -> str:
    sections = "\n\n".join(f"## {heading}\n\nTo be written." for heading in HEADINGS[1:])
    return f"# {outcome}\n\nTo be written.\n\n{BEGIN}\n{END}\n\n{sections}\n"


def pages(folder: Path) -> Iterator[tuple[Path, str]]:
    """Expected content of each page."""
    texts: dict[Outcome, str] = {}
    for outcome in Outcome:
        path = folder / f"{outcome}.md"
        texts[outcome] = rewritten(path.read_text() if path.exists() else skeleton(outcome), facts(outcome))
        yield path, texts[outcome]
    yield folder / INDEX, rewritten((folder / INDEX).read_text(), index(texts))


def main(arguments: list[str]) -> int:
    only_check = "--check" in arguments
    named = [each for each in arguments if not each.startswith("-")]
    folder = Path(named[0]) if named else FOLDER
    stale = [(path, text) for path, text in pages(folder) if not path.exists() or path.read_text() != text]
    for path, text in stale:
        print(f"{path.name}: {'is not what the table says; run `just docs`' if only_check else 'written'}")
        if not only_check:
            path.write_text(text)
    return 1 if only_check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
