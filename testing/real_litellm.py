"""A real LiteLLM proxy for tests, as a hosted provider.

    with litellm_proxy(vendor_url) as provider:
        provider.url, provider.key, provider.models

Most of its models are mocks within LiteLLM, which need no network. The model `VENDOR` is served by the vendor at
`vendor_url`, usually a fake engine, which also shows what LiteLLM passes on. The proxy has no database, downloads
nothing and listens on the loopback interface only.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testing.ports import free_port
from testing.processes import ChildProcess
from testing.real_engines import ROOT

START_SECONDS_MAX = 180
KEY = "sk-canary-provider-key"
VENDOR_KEY = "vendor-key"
VENDOR = "vendor/m"
"""Model that LiteLLM forwards to the vendor."""
MOCK = "mock/m"
TEXT = "These words come from the provider."
"""Response of the model `MOCK`."""
LIMITED = "mock/limited"
"""Model that LiteLLM serves at most once a minute."""
RATE_LIMITED, FAILING, TOO_LONG = "mock/rate-limited", "mock/failing", "mock/too-long"
"""Models that return an error of this kind to each request."""
_MOCKED_ERRORS = {
    RATE_LIMITED: "litellm.RateLimitError",
    FAILING: "litellm.InternalServerError",
    TOO_LONG: "litellm.ContextWindowExceededError",
}


@dataclass(frozen=True)
class LiteLlmProxy:
    url: str
    process: ChildProcess


def litellm_python() -> Path:
    command = [ROOT / "scripts/tool_env", "litellm"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(printed.splitlines()[-1]) / "bin/python"


def litellm_config(vendor_url: str) -> dict[str, Any]:
    return {
        "model_list": [
            _model(VENDOR, api_base=f"{vendor_url}/v1", max_retries=0),
            _model(MOCK, mock_response=TEXT),
            _model(LIMITED, mock_response=TEXT, rpm=1),
            *(_model(name, mock_response=error) for name, error in _MOCKED_ERRORS.items()),
        ],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "num_retries": 0},
        # The tests share the proxy, so an error in one of them must not disable a model for the next one.
        "router_settings": {
            "num_retries": 0,
            "disable_cooldowns": True,
            "optional_pre_call_checks": ["enforce_model_rate_limits"],
        },
    }


def _model(name: str, **parameters: object) -> dict[str, Any]:
    served = {"model": f"openai/{name.rpartition('/')[2]}", "api_key": VENDOR_KEY}
    return {"model_name": name, "litellm_params": served | parameters}


@contextmanager
def litellm_proxy(vendor_url: str = "http://127.0.0.1:9") -> Iterator[LiteLlmProxy]:
    python, port = litellm_python(), free_port()
    url = f"http://127.0.0.1:{port}"
    # LiteLLM would otherwise download its table of prices, and read keys and addresses from these variables.
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DISABLE_ADMIN_UI": "True",
        "NO_DOCS": "True",
        "NO_PROXY": "127.0.0.1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryDirectory(prefix="headgate-litellm-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(litellm_config(vendor_url)))
        command = [
            *(python, "-c", "from litellm import run_server; run_server()", "--config", file),
            *("--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"),
        ]
        with ChildProcess("litellm", command, environment) as process:
            process.wait_until_ok(f"{url}/health/liveliness", START_SECONDS_MAX)
            yield LiteLlmProxy(url, process)
