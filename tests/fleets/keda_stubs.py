"""A KEDA client: the committed messages, and a gRPC stub that protoc generates from the .proto when a test needs it."""

import importlib.util
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

from grpc_tools import protoc as compiler

from headgate.fleets.keda import externalscaler_pb2
from tests.house.small_tree import PROJECT

SOURCES = PROJECT / "src"
FOLDER = Path("headgate/fleets/keda")


def protoc(*outputs: str) -> None:
    command = ["protoc", f"--proto_path={SOURCES}", *outputs, str(FOLDER / "externalscaler.proto")]
    assert compiler.main(command) == 0


@cache
def stubs() -> SimpleNamespace:
    """`messages`, and a `Client` class to create with a channel."""
    with tempfile.TemporaryDirectory(prefix="headgate-keda-") as folder:
        protoc(f"--grpc_python_out={folder}")
        services = _imported("externalscaler_pb2_grpc", Path(folder) / FOLDER)
    return SimpleNamespace(messages=externalscaler_pb2, Client=services.ExternalScalerStub)


def _imported(name: str, folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
