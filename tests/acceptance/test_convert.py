"""Converted configurations serve requests from the engines that their sources name.

The engines are simulated. nginx and Envoy are real, and run with the same file that is converted. For an InferencePool,
a DNS server stands in for the headless Service that the result describes.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from headgate.simulation.server.record import read_record
from testing.certificates import Authority
from testing.dns_server import A, DnsServer
from testing.envoy import envoy_command
from testing.gateway import CHAT, chat, text_of
from testing.nginx import nginx_command
from testing.ports import free_port
from testing.processes import ChildProcess
from testing.simulated_engines import HEADGATE, simulated_engines
from tests.config.convert.envoy_example import every_setting

pytestmark = pytest.mark.process

MODEL = "Qwen/Qwen3-8B"
REQUESTS = 12
ROUNDS_MAX = 20


@contextmanager
def converted_gateway(source: Path, *arguments: str, nameserver: str | None = None) -> Iterator[str]:
    """Converts the source, changes only the ports and the name server, and runs the gateway. Returns its URL."""
    out = source.parent / "converted.yaml"
    subprocess.run([*HEADGATE, "convert", source, "--out", out, *arguments], check=True, capture_output=True)
    config = yaml.safe_load(out.read_text())
    config |= {"listen": f"127.0.0.1:{free_port()}", "admin_listen": f"127.0.0.1:{free_port()}"}
    for pool in config["pools"].values() if nameserver is not None else ():
        pool["fleet"]["nameserver"] = nameserver
    file = source.parent / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [*HEADGATE, "serve", "--config", str(file)]
    with ChildProcess("headgate", command) as process:
        process.wait_until_ok(f"http://{config['admin_listen']}/ready", seconds_max=120)
        yield f"http://{config['listen']}"


async def response_to(
    url: str, model: str, key: str | None = None, prompt: str = "hi", headgate_class: str | None = None
) -> tuple[int, bytes]:
    """Status and body of the response to a streaming request."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    headers |= {} if headgate_class is None else {"x-headgate-class": headgate_class}
    body = chat(prompt, model=model, stream=True, max_tokens=8)
    async with asyncio.timeout(120), aiohttp.ClientSession() as http:
        async with http.post(url + CHAT, json=body, headers=headers) as answer:
            return answer.status, await answer.read()


async def streamed(url: str, model: str, key: str | None = None, prompt: str = "hi") -> str:
    """Text of a streamed response."""
    status, received = await response_to(url, model, key, prompt)
    assert status == 200, received
    assert received.rstrip().endswith(b"data: [DONE]")
    return text_of(received)


async def engines_reached(url: str, record: Path, expected: set[object]) -> set[object]:
    """Numbers of the engines that serve concurrent requests, from the engines' record. Sends more requests until the
    expected engines are among them, because Envoy selects a cluster at random.
    """
    reached: set[object] = set()
    for _ in range(ROUNDS_MAX):
        before = len(read_record(record))
        prompts = [f"{before + number} is a number. " * 8 for number in range(REQUESTS)]
        for text in await asyncio.gather(*(streamed(url, MODEL, prompt=each) for each in prompts)):
            assert text
        async with asyncio.timeout(60):
            # An engine writes the line after the response.
            while len(lines := read_record(record)) < before + REQUESTS:
                await asyncio.sleep(0.01)
        reached |= {line["engine"] for line in lines[before:]}
        if reached >= expected:
            break
    return reached


async def test_converted_litellm_configuration_serves_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_KEY_SECRET", "a-secret-for-the-keys-of-this-test")
    source = tmp_path / "config.yaml"
    with simulated_engines(2, model=MODEL) as engines:
        deployments = [
            {"model_name": "qwen3", "litellm_params": {"model": "hosted_vllm/Qwen/Qwen3-8B", "api_base": f"{url}/v1"}}
            for url in engines
        ]
        source.write_text(
            yaml.safe_dump(
                {
                    "model_list": deployments,
                    "router_settings": {"routing_strategy": "least-busy", "num_retries": 2, "timeout": 300},
                    "general_settings": {"master_key": "sk-existing-key"},
                }
            )
        )
        with converted_gateway(source) as url:
            assert await streamed(url, "qwen3", key="sk-existing-key")
            assert (await response_to(url, "qwen3"))[0] == 401


NGINX = """\
upstream vllm {{
    least_conn;
    server {0} max_conns=8;
    server {1} max_conns=8;
    server {2} down;
}}
server {{
    listen 127.0.0.1:{port};
    location /v1/ {{
        proxy_pass http://vllm;
        proxy_read_timeout 120s;
        proxy_buffering off;
    }}
}}
"""


async def test_converted_nginx_configuration_reaches_the_engines_of_nginx(tmp_path: Path) -> None:
    port, record = free_port(), tmp_path / "record"
    with simulated_engines(3, "--record", str(record), model=MODEL) as engines:
        servers = [url.removeprefix("http://") for url in engines]
        command = nginx_command(tmp_path, NGINX.format(*servers, port=port))
        with ChildProcess("nginx", command) as nginx:
            nginx.wait_until_ok(f"http://127.0.0.1:{port}/v1/models", seconds_max=120)
            with converted_gateway(tmp_path / "nginx.conf", "--engine", "vllm", "--model", MODEL) as url:
                assert await engines_reached(f"http://127.0.0.1:{port}", record, {0, 1}) == {0, 1}
                assert await engines_reached(url, record, {0, 1}) == {0, 1}


ENVOY = """\
static_resources:
  listeners:
    - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
      filter_chains:
        - filters:
            - name: http
              typed_config:
                "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: in
                stream_idle_timeout: 120s
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {{prefix: /v1/}}
                          route:
                            weighted_clusters:
                              clusters: [{{name: stable, weight: 50}}, {{name: canary, weight: 50}}]
                            timeout: 0s
                http_filters:
                  - name: router
                    typed_config: {{"@type": {types}.filters.http.router.v3.Router}}
  clusters:
    - name: stable
      type: STATIC
      connect_timeout: 60s
      circuit_breakers: {{thresholds: [{{max_requests: 32}}]}}
      load_assignment: {{cluster_name: stable, endpoints: [{{lb_endpoints: [{0}]}}]}}
    - name: canary
      type: STRICT_DNS
      dns_lookup_family: V4_ONLY
      connect_timeout: 60s
      load_assignment: {{cluster_name: canary, endpoints: [{{lb_endpoints: [{1}, {2}]}}]}}
"""


def lb_endpoint(host: str, url: str, health_status: str) -> str:
    address = {"socket_address": {"address": host, "port_value": int(url.rpartition(":")[2])}}
    return json.dumps({"endpoint": {"address": address}, "health_status": health_status})


async def test_converted_envoy_configuration_reaches_the_engines_of_envoy(tmp_path: Path) -> None:
    port, record = free_port(), tmp_path / "record"
    file = tmp_path / "envoy.yaml"
    with simulated_engines(3, "--record", str(record), model=MODEL) as engines:
        places = zip(("127.0.0.1", "localhost", "localhost"), engines, ("HEALTHY", "HEALTHY", "DRAINING"), strict=True)
        endpoints = [lb_endpoint(*each) for each in places]
        file.write_text(ENVOY.format(*endpoints, port=port, types="type.googleapis.com/envoy.extensions"))
        with ChildProcess("envoy", envoy_command(file)) as envoy:
            envoy.wait_until_ok(f"http://127.0.0.1:{port}/v1/models", seconds_max=120)
            with converted_gateway(file, "--engine", "vllm", "--model", MODEL) as url:
                assert await engines_reached(f"http://127.0.0.1:{port}", record, {0, 1}) == {0, 1}
                assert await engines_reached(url, record, {0, 1}) == {0, 1}


def test_envoy_accepts_the_settings_that_are_converted(tmp_path: Path) -> None:
    authority, file = Authority(tmp_path / "pki"), tmp_path / "envoy.json"
    issued = authority.issue("front", "front.example")
    for source, name in ((issued.certificate, "tls.crt"), (issued.key, "tls.key"), (authority.file, "ca.crt")):
        (tmp_path / name).write_bytes(Path(source).read_bytes())
    file.write_text(json.dumps(every_setting(tmp_path)))
    validated = subprocess.run(
        [*envoy_command(file), "--mode", "validate"], check=False, capture_output=True, text=True
    )
    converted = subprocess.run([*HEADGATE, "convert", file], check=False, capture_output=True, text=True)

    assert validated.returncode == 0, validated.stderr
    assert converted.returncode == 0, converted.stderr
    config = yaml.safe_load(converted.stdout)
    assert config["pools"]["vllm"]["tls"]["ca"] == str(tmp_path / "ca.crt")
    assert config["listen_tls"]["client_ca"] == str(tmp_path / "ca.crt")
    assert set(config["models"]) == {"m", "lone"}


INFERENCE_POOL = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {{name: qwen3, namespace: llm}}
spec:
  selector: {{matchLabels: {{app: qwen3}}}}
  targetPorts: [{{number: {0}}}, {{number: {1}}}]
  endpointPickerRef: {{name: picker, port: {{number: 9002}}}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {{name: chat, namespace: llm}}
spec: {{priority: 10, poolRef: {{name: qwen3}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: qwen3, namespace: llm}}
spec:
  rules:
    - matches: [{{headers: [{{name: X-Gateway-Model-Name, value: Qwen/Qwen3-8B}}]}}]
      backendRefs: [{{group: inference.networking.k8s.io, kind: InferencePool, name: qwen3}}]
      timeouts: {{request: 5m}}
"""


async def test_converted_inference_pool_reaches_its_pods(tmp_path: Path) -> None:
    record, file = tmp_path / "record", tmp_path / "pool.yaml"
    dns = DnsServer({("qwen3-engines.llm.svc.cluster.local", A): ["127.0.0.1"]})
    with simulated_engines(3, "--record", str(record), model=MODEL) as engines, ExitStack() as stack:
        file.write_text(INFERENCE_POOL.format(*(url.rpartition(":")[2] for url in engines)))
        async with dns.serving():
            running = converted_gateway(file, "--engine", "vllm", nameserver=f"127.0.0.1:{dns.port}")
            # The DNS server runs in this event loop.
            url = await asyncio.to_thread(stack.enter_context, running)
            assert await engines_reached(url, record, {0, 1}) == {0, 1}
            status, body = await response_to(url, MODEL, headgate_class="chat")
            assert (status, text_of(body) != "") == (200, True)
            await asyncio.to_thread(stack.close)
