"""Print a shell completion script, generated from the parsers of all verbs.

For all three shells, the script walks through the words typed so far to find the current command, such as
`/operate/drain`. It then completes either an option value or the command's actions and options.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class _Option:
    names: tuple[str, ...]
    purpose: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    path: str
    actions: Mapping[str, str]
    """Name and purpose of each verb or action."""
    options: Sequence[_Option]
    words: tuple[str, ...] = ()
    """Valid positional arguments, if the set is fixed."""
    takes_path: bool = False
    """Whether a positional argument is a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Bash: source <(headgate completion bash). Fish: headgate completion fish | source."
    parser.add_argument("shell", choices=_SHELLS, help="Shell.")


def run(args: argparse.Namespace) -> int:
    from headgate.cli.main import VERBS, command_parser

    commands = list(_commands(command_parser(VERBS), ""))
    print("\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](commands)))
    return 0


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[_Command]:
    actions: dict[str, str] = {}
    parsers: dict[str, argparse.ArgumentParser] = {}
    options: list[_Option] = []
    words: tuple[str, ...] = ()
    takes_path = False
    for each in parser._actions:  # noqa: SLF001 (argparse has no public way to list them)
        if isinstance(each, argparse._SubParsersAction):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            parsers = cast("dict[str, argparse.ArgumentParser]", each.choices)
            actions = {name: child.description or "" for name, child in parsers.items()}
        elif each.option_strings and each.help != argparse.SUPPRESS:
            options.append(_option(each))
        elif each.choices is not None:
            words += tuple(map(str, each.choices))
        elif not each.option_strings:
            takes_path = takes_path or each.type is Path or "." in str(each.metavar)
    yield _Command(path, actions, options, words, takes_path)
    for name, child in parsers.items():
        yield from _commands(child, f"{path}/{name}")


def _option(action: argparse.Action) -> _Option:
    return _Option(
        names=tuple(action.option_strings),
        purpose=(action.help or "").replace("%%", "%"),
        takes_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
        is_path=action.type is Path,
    )


def _valued(commands: Sequence[_Command]) -> Iterator[tuple[_Command, _Option]]:
    return ((command, each) for command in commands for each in command.options if each.takes_value)


def _bash(commands: Sequence[_Command]) -> Iterator[str]:
    yield "# bash completion for headgate"
    yield "_headgate() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' word words options files"
    yield "    COMPREPLY=()"
    yield '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield f'        case "$at/$word" in {"|".join(each.path for each in commands[1:])}) at="$at/$word" ;; esac'
    yield "    done"
    yield '    case "$at $prev" in'
    for command, option in _valued(commands):
        pattern = "|".join(shlex.quote(f"{command.path} {name}") for name in option.names)
        words = shlex.quote(" ".join(option.choices))
        done = f'-W {words} -- "$cur"' if option.choices else '-f -- "$cur"' if option.is_path else ""
        yield f"        {pattern}) {f'mapfile -t COMPREPLY < <(compgen {done}); ' if done else ''}return ;;"
    yield "    esac"
    yield '    case "$at" in'
    for command in commands:
        words = " ".join([*command.actions, *command.words])
        names = " ".join(name for option in command.options for name in option.names)
        yield f"        {shlex.quote(command.path)})"
        yield f"            options={shlex.quote(names)}"
        yield f"            words={shlex.quote(words)} files={'-f' if command.takes_path else ''} ;;"
    yield "    esac"
    yield "    [[ $cur == -* || -z $words$files ]] && words=$options files="
    yield '    mapfile -t COMPREPLY < <(compgen $files -W "$words" -- "$cur")'
    yield "}"
    yield "complete -o filenames -F _headgate headgate"


def _zsh(commands: Sequence[_Command]) -> Iterator[str]:
    yield "#compdef headgate"
    yield "_headgate() {"
    yield "    local at='' word files=''"
    yield "    local -a found options"
    yield '    for word in "${(@)words[2,CURRENT-1]}"; do'
    yield f'        case "$at/$word" in ({"|".join(each.path for each in commands[1:])}) at="$at/$word" ;; esac'
    yield "    done"
    yield '    case "$at ${words[CURRENT-1]}" in'
    for command, option in _valued(commands):
        pattern = "|".join(shlex.quote(f"{command.path} {name}") for name in option.names)
        does = f"compadd -- {shlex.join(option.choices)}; " if option.choices else "_files; " if option.is_path else ""
        yield f"        ({pattern}) {does}return ;;"
    yield "    esac"
    yield '    case "$at" in'
    for command in commands:
        yield f"        ({shlex.quote(command.path)})"
        found = [*(f"{name}:{purpose}" for name, purpose in command.actions.items()), *command.words]
        options = [f"{name}:{option.purpose}" for option in command.options for name in option.names]
        yield f"            found=({shlex.join(found)})"
        yield f"            options=({shlex.join(options)}) files={'yes' if command.takes_path else ''} ;;"
    yield "    esac"
    yield "    if [[ ${words[CURRENT]} != -* && -n $files ]]; then"
    yield "        _files"
    yield "    elif [[ ${words[CURRENT]} != -* ]] && (( $#found )); then"
    yield "        _describe argument found"
    yield "    else"
    yield "        _describe -o option options"
    yield "    fi"
    yield "}"
    # When autoloaded from a directory in $fpath, the file is the function. When sourced, it registers the function.
    yield 'if [[ $funcstack[1] == _headgate ]]; then _headgate "$@"; else compdef _headgate headgate; fi'


def _fish(commands: Sequence[_Command]) -> Iterator[str]:
    yield "# fish completion for headgate"
    yield "function __headgate_at"
    yield "    set -l at ''"
    yield "    for word in (commandline -opc)[2..-1]"
    yield '        switch "$at/$word"'
    yield f"            case {' '.join(each.path for each in commands[1:])}"
    yield '                set at "$at/$word"'
    yield "        end"
    yield "    end"
    yield '    test "$at" = "$argv[1]"'
    yield "end"
    yield "complete -c headgate -f"
    for command in commands:
        at = f"complete -c headgate -n {_fish_quoted(f'__headgate_at {_fish_quoted(command.path)}')}"
        for name, purpose in command.actions.items():
            yield f"{at} -a {_fish_quoted(name)} -d {_fish_quoted(purpose)}"
        if command.words:
            yield f"{at} -a {_fish_quoted(' '.join(command.words))}"
        elif command.takes_path:
            yield f"{at} -F"
        for option in command.options:
            named = " ".join(f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in option.names)
            choices = f" -x -a {_fish_quoted(' '.join(option.choices))}" if option.choices else ""
            value = choices or (" -r -F" if option.is_path else " -x" if option.takes_value else "")
            yield f"{at} {named}{value} -d {_fish_quoted(option.purpose)}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
