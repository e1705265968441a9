"""Texts of the demo: where everything is, commands to try, and a summary at the end."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.cli.output.view import Status, served_since


@dataclass(frozen=True, slots=True)
class DemoAccess:
    """How a person reaches the parts of a demo."""

    url: str
    admin_url: str
    caller_key: str = field(repr=False)
    operator_key: str = field(repr=False)
    environment: str
    """The file that sets the variables which the commands need."""
    commands: tuple[str, ...] = ()

    @property
    def console(self) -> str:
        return f"{self.admin_url}/console/"


def introduction(access: DemoAccess) -> list[str]:
    return [
        f"  gateway   {access.url}/v1   key {access.caller_key}",
        f"  admin     {access.admin_url}   operator key {access.operator_key}",
        f"  console   {access.console}",
        *commands_to_try(access),
        "Ctrl-C ends the demo and prints a summary.",
    ]


def commands_to_try(access: DemoAccess) -> list[str]:
    return [f"Try in another terminal, after `. {access.environment}`:", *(f"  {each}" for each in access.commands)]


def environment_file(variables: Mapping[str, str], programs: str) -> str:
    """Lines for a shell to read; `programs` is the folder of the `headgate` command."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, f"export PATH={shlex.quote(programs)}:$PATH"]) + "\n"


def summary(first: Status, last: Status) -> Sequence[str]:
    """What became of the requests between two statuses of the gateway."""
    seconds = max(0.0, last["uptime_s"] - first["uptime_s"])
    return [f"Summary of {seconds:.0f} s, as the gateway measured it:", "", *served_since(last, first)]
