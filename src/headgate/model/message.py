"""How is that written which the scheduler and its hosts tell each other?

Once, and read by many: nobody may change a message. The type checker sees to it. To freeze each one at run time as well
would be felt: several are made for every request, and a frozen one takes longer to make for each of its fields.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Message = TypeVar("_Message")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(of: type[_Message]) -> type[_Message]:
    return dataclass(slots=True, unsafe_hash=True)(of)
