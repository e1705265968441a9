"""Print random passages from the project's prose for review.

Usage: sample_prose.py SEED [--per KIND=N ...]. The same seed selects the same passages from the same files. Each one
is printed with its number, kind and location.
"""

import argparse
import ast
import io
import random
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.slo.dashboards import DASHBOARDS
from headgate.telemetry.catalogue import SECTIONS

ROOT = Path(__file__).parent.parent
COUNTS = {"message": 20, "doc": 20, "docstring": 20, "test": 10, "metric": 10}
MESSAGE_WORDS_MIN = 4
PARAGRAPH_WORDS_MIN = 8
COMMENT_WORDS_MIN = 3

_SQL = r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE) |^\s*(select|insert|update|delete|create) | as \w+,$"
_SHELL_OR_LUA = r"redis\.call|\blocal \w+|\[\[ |\bthen$|^\s+(for \w+ in|if|while|case|set) .*[$\[\"]"
_OTHER_CODE = r"[{}();]\s*$|^\s*<|\\w|\(\?"


@dataclass(frozen=True, slots=True)
class Passage:
    place: str
    text: str


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.splitlines()]


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def words_in(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", text))


def messages() -> Iterator[Passage]:
    """Help text, error messages, reasons, log lines and printed text: string literals of more than one word."""
    for path in tracked("src/headgate/**/*.py"):
        if path.name == "catalogue.py" or "slo" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in docstrings or id(node) in parts:
                continue
            text = literal_text(node)
            if text and is_prose(text):
                yield Passage(place(path, node.lineno), text)  # pyright: ignore[reportAttributeAccessIssue]


def literal_text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "{…}"
                for part in values
            )
        case _:
            return ""


def is_prose(text: str) -> bool:
    is_code = re.search(rf"{_SQL}|{_SHELL_OR_LUA}|{_OTHER_CODE}", text, re.MULTILINE)
    return not is_code and words_in(text) >= MESSAGE_WORDS_MIN and text.count(" ") >= MESSAGE_WORDS_MIN - 1


def doc_paragraphs() -> Iterator[Passage]:
    for path in tracked("*.md", "docs/**/*.md"):
        line = 1
        for block in outside_code(path.read_text()):
            text = block.strip()
            if text and not text.startswith(("|", "<!--", "#", "```")) and words_in(text) >= PARAGRAPH_WORDS_MIN:
                yield Passage(place(path, line), text)
            line += block.count("\n") + 1


def outside_code(text: str) -> list[str]:
    """Paragraphs and list items. Lines of code blocks are blanked to keep the line numbers correct."""
    blanked = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return re.split(r"\n(?=\n|[-*] |\d+\. )", blanked)


def docstrings_and_comments() -> Iterator[Passage]:
    for path in tracked("src/**/*.py", "tests/**/*.py", "testing/**/*.py", "bench/**/*.py", "scripts/*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Expr(value=ast.Constant(value=str() as text)) if words_in(text) >= COMMENT_WORDS_MIN:
                    yield Passage(place(path, node.lineno), text.strip())
                case _:
                    pass
        yield from comments(path, source)


def comments(path: Path, source: str) -> Iterator[Passage]:
    """Comments. Consecutive comment lines are joined."""
    begun, lines, last = 0, list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|pyright|type:|fmt)", token.string):
            continue
        if token.start[0] != last + 1 and lines:
            yield Passage(place(path, begun), " ".join(lines))
            lines = []
        begun = begun if lines else token.start[0]
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield Passage(place(path, begun), " ".join(lines))


def test_names() -> Iterator[Passage]:
    for path in tracked("tests/**/*.py", "bench/tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield Passage(place(path, node.lineno), node.name)


def metric_texts() -> Iterator[Passage]:
    for title, described in SECTIONS.items():
        yield Passage("metrics page", title)
        for metric in described:
            yield Passage(metric.name, " ".join(part for part in (metric.help, metric.note) if part))
    for path in tracked("src/headgate/slo/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = literal_text(node)
            if text and is_prose(text) and "headgate_" not in text:
                yield Passage(place(path, node.lineno), text)  # pyright: ignore[reportAttributeAccessIssue]
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            yield Passage(f"dashboard {dashboard.title}", panel.title)


KINDS = {
    "message": messages,
    "doc": doc_paragraphs,
    "docstring": docstrings_and_comments,
    "test": test_names,
    "metric": metric_texts,
}


def sample(seed: int, counts: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Passage]]:
    drawn = random.Random(seed)  # noqa: S311
    for kind, count in counts:
        passages = sorted(set(KINDS[kind]()), key=lambda passage: (passage.place, passage.text))
        for passage in drawn.sample(passages, count):
            yield kind, passage


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("seed", type=int, metavar="SEED", help="Random seed.")
    parser.add_argument(
        "--per", nargs="*", default=[], metavar="KIND=N", help="Passages of each kind (default: 80 in all)."
    )
    args = parser.parse_args(argv)
    counts = COUNTS | {kind: int(number) for kind, _, number in (item.partition("=") for item in args.per)}
    for number, (kind, passage) in enumerate(sample(args.seed, counts.items()), 1):
        print(f"--- {number} [{kind}] {passage.place}\n{passage.text}\n")


if __name__ == "__main__":
    main()
