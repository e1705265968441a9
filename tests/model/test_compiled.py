"""Values behave the same in the compiled and in the pure build."""

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from headgate import compiled_classes
from headgate.build import BUILD
from headgate.core.counters import Counters, LengthsCounter
from headgate.model import units
from headgate.model.units import ModelName, TenantId
from headgate.model.usage import Usage, UsageSource


@dataclass(frozen=True)
class Listed:
    items: tuple[object, ...]
    name: str = "none"


class Pair(NamedTuple):
    left: tuple[object, ...]
    right: int


def test_build_is_read_from_the_imported_files() -> None:
    assert (Path(str(units.__file__)).suffix == ".py") == (BUILD == "pure Python")


def test_values_are_copied_and_pickled() -> None:
    usage = Usage(1, 2, 0, UsageSource.ENGINE)

    assert pickle.loads(pickle.dumps(usage)) == usage == copy.copy(usage)


def test_decoded_values_keep_the_types_inside_of_tuples() -> None:
    counters = Counters(lengths=(LengthsCounter(TenantId("acme"), ModelName("m"), ((1, 2, 3), (4, 5, 6))),))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(counters), type=Counters) == counters


def test_completed_class_has_its_annotations_and_can_be_pickled() -> None:
    compiled_classes.complete_class(Listed, {"items": "tuple[int, ...]", "name": "str"})
    compiled_classes.complete_class(Pair, {"left": "tuple[int, ...]", "right": "int"})

    value = msgspec.json.decode(b'{"items": [1, 2]}', type=Listed)
    assert value == Listed((1, 2)) == pickle.loads(pickle.dumps(value))
    assert Pair.__annotations__["left"] == "tuple[int, ...]"
