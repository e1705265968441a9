"""How does a test speak to the scaler as KEDA does? By stubs that protoc makes of the .proto, now and here."""

import importlib.util
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

from tests.house.small_tree import PROJECT

PROTO = PROJECT / "src/headgate/fleets/keda/externalscaler.proto"


@cache
def stubs() -> SimpleNamespace:
    """`messages`, and `Client` for a channel."""
    with tempfile.TemporaryDirectory(prefix="headgate-keda-") as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO.parent}"]
        subprocess.run([*command, f"--python_out={folder}", f"--grpc_python_out={folder}", PROTO.name], check=True)
        messages = _imported("externalscaler_pb2", Path(folder))
        services = _imported("externalscaler_pb2_grpc", Path(folder))
    return SimpleNamespace(messages=messages, Client=services.ExternalScalerStub)


def _imported(name: str, folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
