"""Every `headgate` command and `just` verb in the docs exists and accepts the options shown there."""

import argparse
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache

import pytest

from headgate.cli.main import VERBS, command_parser
from tests.docs.pages import PAGES, code_spans, fenced_blocks, problems_by_page
from tests.house.small_tree import PROJECT

JUST_VERBS = set(re.findall(r"^(?:alias )?([a-z][a-z0-9-]*)[^\n:]*:", (PROJECT / "justfile").read_text(), re.MULTILINE))
OTHER_OPTIONS = {
    # vLLM, llama.cpp, Redis, pip, Docker Compose and Helm.
    *("--max-num-batched-tokens", "--reasoning-parser", "--scheduling-policy", "--allowed-media-domains"),
    *("--kv-unified", "--metrics", "--ubatch-size", "--appendonly", "--save", "--require-hashes"),
    *("--volumes", "--set-file", "--max-loras"),
}
SHELL_OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<", ")", "2>&1"}
PLACEHOLDER_ERRORS = re.compile(
    r"required|expected one argument|invalid \w+( value)?: '([A-Z]+|…)'|expected a .*, not \"[A-Z]+\""
)
PROMPT_AND_VARIABLES = r"(?:\$ )?(?:[A-Z][A-Z_]*=(?:\"[^\"]*\"|\S)* )*"


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
    parser = parser_of(arguments[0] if arguments[0] in VERBS else None)
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


@cache
def parser_of(verb: str | None) -> argparse.ArgumentParser:
    return command_parser([verb] if verb else [])


@cache
def options_of(parser: argparse.ArgumentParser) -> set[str]:
    options = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options |= {option for each in action.choices.values() for option in options_of(each)}
    return options


def test_commands_in_code_blocks_are_valid() -> None:
    def errors(text: str) -> dict[str, str]:
        return {
            " ".join(arguments): error
            for arguments in shell_commands(text, "headgate")
            if (error := parser_error(arguments))
        }

    assert problems_by_page(errors) == {}


def test_commands_in_code_spans_are_valid() -> None:
    """A span may omit arguments or use a placeholder, as in `headgate serve --workers N`."""

    def errors(text: str) -> dict[str, str]:
        spans = [span for span in code_spans(text) if re.match(r"headgate [a-z]", span)]
        return {
            span: error
            for span in spans
            if (error := parser_error(before_operator(span.removeprefix("headgate ").replace("\\|", ","))))
            and not PLACEHOLDER_ERRORS.search(error)
        }

    assert problems_by_page(errors) == {}


def test_options_in_code_spans_exist() -> None:
    """A span that begins with an option refers to one of Headgate's commands, a script or a benchmark."""
    known = options_of(command_parser(VERBS)) | script_options() | OTHER_OPTIONS

    def unknown(text: str) -> set[str]:
        named = {
            option
            for span in code_spans(text)
            if span.startswith("--")
            for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", span)
        }
        return named - known

    assert problems_by_page(unknown) == {}


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


def test_documented_just_verbs_exist() -> None:
    def unknown(text: str) -> set[str]:
        named = {arguments[0] for arguments in shell_commands(text, "just")}
        named |= {found[1] for span in code_spans(text) if (found := re.match(r"just ([a-z][a-z0-9-]*)", span))}
        return named - JUST_VERBS

    assert problems_by_page(unknown) == {}


def test_docs_mention_every_verb() -> None:
    named = {
        found[1]
        for text in PAGES.values()
        for span in (*code_spans(text), *(f"headgate {' '.join(each)}" for each in shell_commands(text, "headgate")))
        if (found := re.search(r"\bheadgate ([a-z]+)", span))
    }
    assert set(VERBS) - named == set()
