"""Dialect for engines of which nothing is known except that they offer the OpenAI API.

Such an engine is ready when it lists its models. It does not report its load.
"""

from typing import Final

from headgate.engines.dialect import Dialect

OPENAI_COMPATIBLE: Final = Dialect(name="openai_compatible")
