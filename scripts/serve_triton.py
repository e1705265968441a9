"""Run a real Triton server with small test models.

    $(scripts/engine_env triton)/bin/python scripts/serve_triton.py --port 8000 --model llm --model embed

The models are in scripts/triton_models. The metrics port is two above the request port. Both listen on loopback.
"""

import argparse
import os
import sys
from pathlib import Path

MODELS = Path(__file__).parent / "triton_models"


def main() -> None:
    parser = argparse.ArgumentParser(description="Triton with the models of scripts/triton_models")
    parser.add_argument("--port", type=int, required=True, help="request port; the metrics port is two above")
    parser.add_argument(
        "--model", action="append", required=True, choices=sorted(each.name for each in MODELS.iterdir())
    )
    asked = parser.parse_args()
    # Not sys.executable, which resolves to the base interpreter instead of the environment.
    folder = Path(sys.prefix)
    server = folder / "tritonserver"
    command = [
        str(server / "bin/tritonserver"),
        f"--model-repository={MODELS}",
        f"--backend-directory={server / 'backends'}",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in asked.model),
        *("--http-address=127.0.0.1", f"--http-port={asked.port}", "--allow-grpc=false"),
        *("--metrics-address=127.0.0.1", f"--metrics-port={asked.port + 2}", "--metrics-interval-ms=200"),
    ]
    (libraries,) = folder.glob("lib/python3.*/site-packages/nvidia_pytriton.libs")
    variables = os.environ | {
        "LD_LIBRARY_PATH": str(libraries),
        # Triton uses this to find the Python interpreter for its models.
        "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
    }
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        variables.pop(name, None)
    os.execve(command[0], command, variables)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
