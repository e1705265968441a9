"""How do values of the environment come into the file?

`${NAME}` anywhere in a value stands for the variable of that name; `$${` stands for `${`.
"""

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")


class Unexpandable(Exception):
    """A variable is missing or badly written. The message says which."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name: str | None = found[1]
        if name is None:
            raise Unexpandable('"${" begins the name of a variable, as in ${NAME}; write "$${" where "${" is meant')
        if name not in environ:
            raise Unexpandable(f"the environment variable {name} is not set; export it before starting Headgate")
        return environ[name]

    return _VARIABLE.sub(value, text)
