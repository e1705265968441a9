"""How is that written which the scheduler and its hosts tell each other?

Once, and read by many: nobody may change a message. The type checker sees to it. To freeze each one at run time as well
would cost as much as half of all that a host does to tell the scheduler something.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_Message = TypeVar("_Message")


@dataclass_transform(frozen_default=True)
def message(of: type[_Message]) -> type[_Message]:
    return dataclass(slots=True, unsafe_hash=True)(of)
