"""Proxies that the gateway is compared with: nginx and Envoy.

Both have one worker, no access log, no buffering and keep-alive connections to the upstream, and do not generate
request IDs.
"""

import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cpu_cores import started_on
from bench.mock_upstream import MODEL
from bench.targets import START_SECONDS_MAX, Target
from testing.envoy import envoy_command
from testing.ports import free_port
from testing.processes import ChildProcess, MissingProgram

_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engine {{
        server 127.0.0.1:{upstream_port};
        keepalive 1024;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""

_ENVOY = """\
static_resources:
  listeners:
  - name: in
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          generate_request_id: false
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: engine, timeout: 0s}}}}]
          http_filters:
          - name: router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              suppress_envoy_headers: true
  clusters:
  - name: engine
    type: STATIC
    circuit_breakers: {{thresholds: [{{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}}]}}
    load_assignment:
      cluster_name: engine
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream_port}}}}}}}
"""


@dataclass(frozen=True, slots=True)
class BaselineProxy:
    name: str
    config: str
    """Configuration file, with the fields `folder`, `port` and `upstream_port`."""
    command: Callable[[Path], Sequence[str | Path]]
    """Returns the command for a configuration file. Raises `MissingProgram` if the proxy is not installed."""


def find_nginx(which: Callable[..., str | None] = shutil.which) -> str:
    # Debian installs nginx outside the search path of regular users.
    found = which("nginx") or which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingProgram("nginx is not installed, but the benchmark needs it; run apt-get install nginx-light")
    return found


def _nginx_command(file: Path) -> Sequence[str | Path]:
    return [find_nginx(), "-p", file.parent, "-c", file, "-e", "stderr"]


NGINX = BaselineProxy("nginx", _NGINX, _nginx_command)
ENVOY = BaselineProxy("envoy", _ENVOY, envoy_command)
PROXIES = (NGINX, ENVOY)


def check_installed(proxies: Sequence[BaselineProxy] = PROXIES) -> None:
    """Raise `MissingProgram` if one of the proxies is not installed."""
    for proxy in proxies:
        proxy.command(Path())


@contextmanager
def running_proxy(proxy: BaselineProxy, core: int, upstream_port: int, folder: Path) -> Generator[Target]:
    port = free_port()
    folder.mkdir()
    # Envoy recognizes YAML by the file's name. nginx accepts any name.
    file = folder / "config.yaml"
    file.write_text(proxy.config.format(folder=folder, upstream_port=upstream_port, port=port))
    with started_on(core):
        process = ChildProcess(proxy.name, proxy.command(file))
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{port}/health", START_SECONDS_MAX)
        yield Target(proxy.name, port, MODEL, "none", process)
