"""Demo output: addresses and keys, commands to try, and a final summary."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.cli.output.top_screen import Status, served_since


@dataclass(frozen=True, slots=True)
class DemoAccess:
    """Addresses, keys and commands for a running demo."""

    url: str
    admin_url: str
    caller_key: str = field(repr=False)
    operator_key: str = field(repr=False)
    environment: str
    """File that sets the environment variables that the commands need."""
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
        "Press q or Ctrl-C to stop the demo and print a summary.",
    ]


def commands_to_try(access: DemoAccess) -> list[str]:
    return [f"In another terminal, run `. {access.environment}`, then try:", *(f"  {each}" for each in access.commands)]


def environment_file(variables: Mapping[str, str], programs: str) -> str:
    """Shell script that sets the variables; `programs` is the directory of the `headgate` command."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, f"export PATH={shlex.quote(programs)}:$PATH"]) + "\n"


def summary(first: Status, last: Status) -> Sequence[str]:
    """Results of the requests between two gateway statuses."""
    seconds = max(0.0, last["uptime_s"] - first["uptime_s"])
    return [f"Summary of {seconds:.0f} s, measured by the gateway:", "", *served_since(last, first)]
