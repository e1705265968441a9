"""Every `headgate` command and `just` verb in the docs exists and accepts the options shown there."""

import argparse
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from headgate.cli.main import VERBS, command_parser
from tests.house.small_tree import PROJECT

ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = sorted([*(PROJECT / name for name in ROOT_PAGES), *(PROJECT / "docs").rglob("*.md")])
JUST_VERBS = set(re.findall(r"^(?:alias )?([a-z][a-z0-9-]*)[^\n:]*:", (PROJECT / "justfile").read_text(), re.MULTILINE))
OTHER_OPTIONS = {
    # vLLM, llama.cpp, Redis and pip.
    *("--max-num-batched-tokens", "--reasoning-parser", "--scheduling-policy", "--allowed-media-domains"),
    *("--kv-unified", "--metrics", "--ubatch-size", "--appendonly", "--save", "--require-hashes"),
}
SHELL_OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<", ")", "2>&1"}
PLACEHOLDER_ERRORS = re.compile(r"required|expected one argument|invalid \w+( value)?: '([A-Z]+|…)'")
PROMPT_AND_VARIABLES = r"(?:\$ )?(?:[A-Z][A-Z_]*=(?:\"[^\"]*\"|\S)* )*"


def page_id(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def fenced_blocks(text: str) -> list[str]:
    return re.findall(r"^ *```(?:bash|console|)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def without_blocks(text: str) -> str:
    return re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def code_spans(text: str) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", without_blocks(text))]


def shell_commands(text: str, program: str) -> Iterator[list[str]]:
    """Arguments of each invocation of the program in the page's code blocks, up to the first shell operator."""
    for block in fenced_blocks(text):
        joined = re.sub(r" *\\\n\s*", " ", block)
        for line in joined.splitlines():
            # In the program's own log lines, its name is followed by a colon.
            found = re.match(rf" *{PROMPT_AND_VARIABLES}{program} +([a-z][a-z-]*(?: .*)?)$", line)
            if found and not re.match(r"[a-z-]+:", found[1]):
                yield before_operator(found[1])


def before_operator(command: str) -> list[str]:
    words = shlex.shlex(re.sub(r"\s{2,}\S.*$| #.*$", "", command), posix=True, punctuation_chars=True)
    words.whitespace_split = True
    arguments: list[str] = []
    for word in words:
        if word in SHELL_OPERATORS:
            break
        arguments.append(word)
    return arguments


def parser_error(arguments: list[str]) -> str:
    """Error message from the command-line parser; empty if it accepts the arguments."""
    parser = command_parser(arguments[:1] if arguments[0] in VERBS else [])
    # The parser also accepts abbreviations.
    if unknown := {word.partition("=")[0] for word in arguments if word.startswith("--")} - options_of(parser):
        return f"unknown options: {', '.join(unknown)}"
    output = io.StringIO()
    with redirect_stderr(output), redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(arguments)
        except SystemExit as exit_request:
            return output.getvalue().splitlines()[-1] if exit_request.code else ""
    return ""


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    options = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options |= {option for each in action.choices.values() for option in options_of(each)}
    return options


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_code_blocks_are_valid(page: Path) -> None:
    errors = {
        " ".join(arguments): error
        for arguments in shell_commands(page.read_text(), "headgate")
        if (error := parser_error(arguments))
    }
    assert errors == {}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_code_spans_are_valid(page: Path) -> None:
    """A span may omit arguments or use a placeholder, as in `headgate serve --workers N`."""
    spans = [span for span in code_spans(page.read_text()) if re.match(r"headgate [a-z]", span)]
    errors = {
        span: error
        for span in spans
        if (error := parser_error(before_operator(span.removeprefix("headgate ").replace("\\|", ","))))
        and not PLACEHOLDER_ERRORS.search(error)
    }
    assert errors == {}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_in_code_spans_exist(page: Path) -> None:
    """A span that begins with an option refers to one of Headgate's commands, a script or a benchmark."""
    named = {
        option
        for span in code_spans(page.read_text())
        if span.startswith("--")
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", span)
    }
    assert named - options_of(command_parser(VERBS)) - script_options() - OTHER_OPTIONS == set()


@cache
def script_options() -> set[str]:
    """Options of scripts, benchmarks and tests, and of programs they start."""
    files = [
        path for name in ("bench", "fuzz", "scripts", "testing", "tests") for path in (PROJECT / name).rglob("*.py")
    ]
    return {option for file in files for option in re.findall(r"[\"'](--[a-z][a-z0-9-]+)", file.read_text())}


@pytest.mark.parametrize(("verb", "page"), [("engine", "simulated-engine.md"), ("loadtest", "load-testing.md")])
def test_verb_guide_documents_all_its_options(verb: str, page: str) -> None:
    parser = command_parser([verb])
    [verbs] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    options = {option for option in options_of(verbs.choices[verb]) if option.startswith("--")}
    assert options - set(re.findall(r"--[a-z][a-z0-9-]+", (PROJECT / "docs/guides" / page).read_text())) == {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_documented_just_verbs_exist(page: Path) -> None:
    text = page.read_text()
    named = {arguments[0] for arguments in shell_commands(text, "just")}
    named |= {found[1] for span in code_spans(text) if (found := re.match(r"just ([a-z][a-z0-9-]*)", span))}
    assert named - JUST_VERBS == set()


def test_docs_mention_every_verb() -> None:
    named = {
        found[1]
        for page in PAGES
        for text in (page.read_text(),)
        for span in (*code_spans(text), *(f"headgate {' '.join(each)}" for each in shell_commands(text, "headgate")))
        if (found := re.search(r"\bheadgate ([a-z]+)", span))
    }
    assert set(VERBS) - named == set()
