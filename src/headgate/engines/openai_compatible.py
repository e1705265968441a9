"""How is an engine addressed of which only the OpenAI wire is known?

It is ready when it lists its models. It tells nothing of its load.
"""

from typing import Final

from headgate.engines.dialect import Dialect

OPENAI_COMPATIBLE: Final = Dialect(name="openai_compatible")
