"""Environment variables in configuration values.

`${NAME}` anywhere in a value is replaced by that variable; `$${` is replaced by `${`.
"""

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")


class ExpansionError(Exception):
    """A variable is not set, or its reference is malformed. The message identifies it."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name: str | None = found[1]
        if name is None:
            raise ExpansionError('"${" must start a variable reference such as ${NAME}; write "$${" for a literal "${"')
        if name not in environ:
            raise ExpansionError(f"the environment variable {name} is not set; export it before starting Headgate")
        return environ[name]

    return _VARIABLE.sub(value, text)
