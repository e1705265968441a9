"""A real Triton server for tests, which may also kill it.

    with triton("llm") as engine:
        ask(engine.url, model=engine.model)

The models come from scripts/triton_models. The first one becomes `engine.model`.
"""

from collections.abc import Generator
from contextlib import contextmanager

from testing.ports import free_ports
from testing.processes import ChildProcess
from testing.real_engines import ROOT, RealEngine, environment_of

START_SECONDS_MAX = 180


@contextmanager
def triton(*models: str) -> Generator[RealEngine]:
    folder = environment_of("triton")
    port, *_ = free_ports(3)
    url = f"http://127.0.0.1:{port}"
    command = [folder / "bin/python", ROOT / "scripts/serve_triton.py", "--port", str(port)]
    for model in models:
        command += ["--model", model]
    with ChildProcess("triton", command) as process:
        process.wait_until_ok(f"{url}/v2/health/ready", START_SECONDS_MAX)
        yield RealEngine(url, models[0], process)
