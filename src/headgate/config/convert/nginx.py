"""Reads an nginx configuration: upstreams, and the servers and locations that proxy to them.

Settings of a location come before those of its server and of the `http` block, because the first value of a setting
applies to the whole gateway.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.config.convert.draft import Draft, PoolDraft, base_path, described
from headgate.config.convert.nginx_settings import NginxSettings, is_number, place_of
from headgate.config.convert.nginx_syntax import Directive, nginx_time

_PROXY_PASS: Final = re.compile(r"(https?)://([^/$?]+)(/[^$?]*)?")
_ENGINE_TLS: Final = (
    ("proxy_ssl_trusted_certificate", "ca"),
    ("proxy_ssl_certificate", "certificate"),
    ("proxy_ssl_certificate_key", "key"),
    ("proxy_ssl_name", "server_name"),
)


@dataclass(slots=True)
class NginxReader:
    draft: Draft
    engine: str
    models: Mapping[str, str]
    settings: NginxSettings
    _upstreams: dict[str, Directive] = field(default_factory=dict[str, Directive])
    _used: set[str] = field(default_factory=set[str])

    def read(self, directives: Sequence[Directive]) -> None:
        # In the output of `nginx -T`, the contents of included files are at the top level.
        scopes = [directives, *(each.block or [] for each in directives if each.name == "http")]
        for each in (each for scope in scopes for each in scope):
            self._collect(each)
        for scope in reversed(scopes):
            outer = scope if scope is not directives else []
            for each in scope:
                if each.name == "server" and each.block is not None:
                    self._server(each, outer)
        for scope in reversed(scopes):
            self.settings.read(scope)
        for name, upstream in self._upstreams.items():
            if name not in self._used:
                self.settings.drop(upstream, "no proxy_pass uses it")
        self.settings.apply_limits()

    def _collect(self, directive: Directive) -> None:
        if directive.name == "upstream" and directive.block is not None:
            name = directive.first()
            if name in self._upstreams:
                first = self._upstreams[name].line
                raise self.draft.file.error(directive.line, f"upstream {name}", f"is already defined on line {first}")
            self._upstreams[name] = directive
            self.settings.mark(directive)
        elif directive.name in ("limit_req_zone", "limit_conn_zone"):
            self.settings.add_zone(directive)

    # Servers and locations

    def _server(self, server: Directive, outer: Sequence[Directive]) -> None:
        self.settings.mark(server)
        if not _has_proxy_pass(server):
            self.settings.drop(server, "it has no proxy_pass")
            return
        scopes = [server.block or [], outer]
        for each in server.block or []:
            if each.name == "location":
                self._location(each, scopes)
        self._listener_tls(server.block or [])
        self.settings.read(server.block or [])

    def _location(self, location: Directive, scopes: Sequence[Sequence[Directive]]) -> None:
        self.settings.mark(location)
        inner = [location.block or [], *scopes]
        if not _has_proxy_pass(location):
            self.settings.drop(location, "it has no proxy_pass")
            return
        for each in location.block or []:
            if each.name == "location":
                self._location(each, inner)
            elif each.name == "proxy_pass":
                self._proxy(each, location, inner)
        self.settings.read(location.block or [])

    def _proxy(self, proxy: Directive, location: Directive, scopes: Sequence[Sequence[Directive]]) -> None:
        self.settings.mark(proxy)
        found = _PROXY_PASS.fullmatch(proxy.first())
        if found is None:
            self.settings.drop(proxy, "only http:// and https:// without variables can be carried over")
            return
        scheme, host = found[1], found[2]
        upstream = self._upstreams.get(host)
        name = host if upstream is not None else host.removesuffix(":80").replace(":", "-")
        path = self._base_path(location, found[3])
        pool = PoolDraft(name, self.engine, None, self._api_key(name, scopes), self._engine_tls(scheme, scopes))
        model = self._model(name, proxy)
        if upstream is None:
            self.draft.add_endpoint(model, f"{scheme}://{host}{path}", pool, place_of(proxy))
            return
        if host not in self._used:
            self._used.add(host)
            self.settings.read(each for each in upstream.block or [] if each.name != "server")
        for each in upstream.block or []:
            if each.name == "server":
                self._upstream_server(each, model, pool, (scheme, path))

    def _model(self, name: str, proxy: Directive) -> str:
        model = self.models.get(name, self.models.get(""))
        if model is not None:
            return model
        valid = self.draft.model_name(name, place_of(proxy))
        hint = f"clients must send it, or convert again with --model {name}=NAME"
        self.settings.change(proxy, f'nginx has no model names, so the model is called "{valid}"; {hint}')
        return valid

    def _base_path(self, location: Directive, uri: str | None) -> str:
        """Base path of the engines. Clients always use /v1."""
        pattern = location.arguments[-1] if location.arguments else "/"
        has_path = location.first() not in {"~", "~*"} and not pattern.startswith("@")
        client = base_path(pattern) if has_path else ""
        if client:
            self.settings.change(location, f"clients use /v1 instead of {client}/v1")
        return client if uri is None else base_path(uri)

    def _upstream_server(self, server: Directive, model: str, pool: PoolDraft, target: tuple[str, str]) -> None:
        scheme, path = target
        flags = {each for each in server.arguments[1:] if "=" not in each}
        values = dict(each.split("=", 1) for each in server.arguments[1:] if "=" in each)
        self.settings.mark(server)
        if server.first().startswith("unix:") or "service" in values or "$" in server.first():
            self.settings.drop(server, "only host names and addresses can be endpoints")
            return
        if "down" in flags:
            self.settings.drop(server, "it is down; add it to the endpoints when it is back")
            return
        place = place_of(server)
        self._failures(values, server)
        if "backup" in flags:
            model, pool = self.draft.standby(model, pool, place)
        for name in [*(flags - {"backup", "resolve"}), *(values.keys() - _SERVER_VALUES)]:
            self.draft.file.drop(server.line, f"upstream server {name}")
        limit = int(values["max_conns"]) if is_number(values.get("max_conns", "")) else 0
        host, colon, port = server.first().rpartition(":")
        if not colon or not is_number(port):
            host, port = server.first(), "80"
        if "resolve" in flags:
            fleet = (("kind", "dns"), ("name", host), ("port", port), ("scheme", scheme))
            pool = PoolDraft(pool.name, pool.engine, pool.served_model, pool.api_key, pool.tls, fleet)
            self.draft.add_fleet(model, pool, place, in_flight_max=limit or None)
        else:
            url = f"{scheme}://{host}:{port}{path}"
            self.draft.add_endpoint(model, url, pool, place, in_flight_max=limit or None)

    def _failures(self, values: Mapping[str, str], server: Directive) -> None:
        place = server.line, "upstream server"
        if values.get("weight", "1") != "1":
            self.settings.change(server, "its weight has no effect, because Headgate routes by predicted time")
        if (fails := values.get("max_fails")) is not None:
            if is_number(fails) and int(fails) > 0:
                comment = f"From max_fails (line {server.line}), which counts failures within fail_timeout."
                self.draft.put_number(("health", "consecutive_failures_max"), int(fails), place, comment)
            else:
                self.draft.file.drop(server.line, "max_fails", "endpoints that fail are always ejected")
        if (timeout := nginx_time(values.get("fail_timeout", ""))) is not None:
            self.draft.put_ejection_time(timeout, (server.line, "fail_timeout"))
        if (slow := nginx_time(values.get("slow_start", ""))) is not None:
            self.draft.put_duration(("health", "slow_start"), slow, (server.line, "slow_start"))

    def _api_key(self, name: str, scopes: Sequence[Sequence[Directive]]) -> str | None:
        for each in (each for scope in scopes for each in scope if each.name == "proxy_set_header"):
            if each.first().lower() != "authorization" or len(each.arguments) < 2:
                continue
            kind, _, value = each.arguments[1].partition(" ")
            self.settings.mark(each)
            if "$" in value or "$" in kind:
                self.settings.change(each, "Headgate does not forward the client's key; it sends api_key of the pool")
            elif kind.lower() == "bearer" and value:
                variable = self.draft.secret(value, f"{name}_API_KEY", f"API key of the engines of {name}")
                self.settings.change(each, f"secrets are not copied; set the environment variable {variable}")
                return variable
            else:
                self.settings.drop(each, "only bearer tokens can be sent to engines")
            return None
        return None

    def _engine_tls(self, scheme: str, scopes: Sequence[Sequence[Directive]]) -> tuple[tuple[str, str], ...]:
        if scheme == "http":
            return ()
        found: dict[str, str] = {}
        for name, setting in _ENGINE_TLS:
            for each in (each for scope in scopes for each in scope if each.name == name):
                self.settings.mark(each)
                if "$" not in each.first() and each.first():
                    found.setdefault(setting, each.first())
        if "key" in found and "certificate" not in found:
            found.pop("key")
        verify = next((each for scope in scopes for each in scope if each.name == "proxy_ssl_verify"), None)
        if verify is not None:
            self.settings.mark(verify)
        if verify is None or verify.first() != "on":
            line = None if verify is None else verify.line
            problem = (
                "Headgate always verifies the engines' certificates; set tls.ca of the pool for a private authority"
            )
            self.draft.file.change(line, "proxy_ssl_verify", problem)
        return tuple(found.items())

    def _listener_tls(self, server: Sequence[Directive]) -> None:
        by_name = {each.name: each for each in server}
        certificate, key = by_name.get("ssl_certificate"), by_name.get("ssl_certificate_key")
        if certificate is None or key is None or self.draft.get(("listen_tls",)) is not None:
            return
        if "$" in certificate.first() + key.first() or ":" in certificate.first() + key.first():
            return
        settings = {"certificate": certificate, "key": key}
        client_ca = by_name.get("ssl_client_certificate")
        if client_ca is not None and by_name.get("ssl_verify_client", client_ca).first() == "on":
            settings["client_ca"] = client_ca
            self.settings.mark(by_name["ssl_verify_client"])
        for setting, each in settings.items():
            self.settings.mark(each)
            self.draft.put(("listen_tls", setting), each.first(), f"From {described(place_of(each))}.")


_SERVER_VALUES: Final = frozenset({"weight", "max_conns", "max_fails", "fail_timeout", "slow_start"})


def _has_proxy_pass(directive: Directive) -> bool:
    inner = directive.block or []
    return any(each.name == "proxy_pass" or (each.name == "location" and _has_proxy_pass(each)) for each in inner)
