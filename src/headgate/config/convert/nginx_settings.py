"""Settings of an nginx configuration that apply to the whole gateway, and notes about all other directives."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from headgate.config.convert.draft import ANONYMOUS_TENANT, Draft, described
from headgate.config.convert.nginx_syntax import Directive, nginx_size, nginx_time, requests_per_minute
from headgate.config.convert.source import NO_EQUIVALENT

_ROUTED: Final = "Headgate routes by predicted time, with prefix affinity"
_ACCESS: Final = "create keys instead; see docs/guides/tenants-and-keys.md"
_MESSAGES: Final[Mapping[str, str]] = {
    "hash": _ROUTED,
    "ip_hash": _ROUTED,
    "least_conn": _ROUTED,
    "least_time": _ROUTED,
    "random": _ROUTED,
    "sticky": _ROUTED,
    "keepalive": "Headgate keeps connections to engines open by itself",
    "queue": "requests always wait in the gateway; see classes.NAME.queue_length_max and queue_wait_max",
    "zone": "not needed",
    "auth_basic": _ACCESS,
    "auth_basic_user_file": _ACCESS,
    "auth_jwt": _ACCESS,
    "auth_request": _ACCESS,
    "allow": "restrict the network, or clients with listen_tls.client_ca",
    "deny": "restrict the network, or clients with listen_tls.client_ca",
    "client_body_timeout": "limits.body_timeout limits the time for the whole body",
    "proxy_buffering": "Headgate never buffers streams",
    "proxy_connect_timeout": "connections to engines have a fixed timeout",
    "proxy_http_version": "not needed",
    "proxy_next_upstream": "the scheduler decides by the kind of failure; retry.attempts_max limits all attempts",
    "proxy_set_header": "Headgate sends its own headers to engines",
    "server_name": "Headgate serves all host names",
    "ssl_ciphers": "Headgate offers TLS 1.2 and 1.3 with OpenSSL's ciphers",
    "ssl_protocols": "Headgate offers TLS 1.2 and 1.3",
    "stream": "TCP proxies have no equivalent",
    "access_log": "see docs/guides/explain.md for records of requests",
    "include": "included files are not read; convert the output of `nginx -T`",
}


@dataclass(slots=True)
class NginxSettings:
    draft: Draft
    includes_are_expanded: bool
    """Whether the source is the output of `nginx -T`."""
    _zones: dict[str, Directive] = field(default_factory=dict[str, Directive])
    _limits: list[Directive] = field(default_factory=list[Directive])
    _read: set[int] = field(default_factory=set[int])
    """IDs of the directives that have been read."""

    def add_zone(self, directive: Directive) -> None:
        zone = next((each for each in directive.arguments if each.startswith("zone=")), "zone=")
        self._zones[f"{directive.name}:{zone[5:].partition(':')[0]}"] = directive
        self.mark(directive)

    def read(self, scope: Iterable[Directive]) -> None:
        """Carries over the directives of a block that have not been read, or reports them."""
        handlers = self._handlers()
        for each in scope:
            if id(each) in self._read or (each.name == "include" and self.includes_are_expanded) or each.name == "http":
                continue
            self.mark(each)
            if each.name in ("auth_basic", "auth_jwt", "auth_request", "deny") and each.first() != "off":
                reason = f"nginx restricts access with {each.name} (line {each.line})"
                self.draft.key_reason = self.draft.key_reason or reason
            handler = handlers.get(each.name)
            if handler is None or not handler(each):
                self.drop(each)

    def _handlers(self) -> Mapping[str, Callable[[Directive], bool]]:
        return {
            "proxy_read_timeout": self._read_timeout,
            "proxy_next_upstream": self._no_retries,
            "proxy_next_upstream_tries": self._tries,
            "client_max_body_size": self._body_size,
            "client_header_timeout": partial(self._duration, ("limits", "header_timeout")),
            "keepalive_timeout": partial(self._duration, ("limits", "keepalive_timeout")),
            "send_timeout": partial(self._duration, ("limits", "send_timeout")),
            "worker_shutdown_timeout": partial(self._duration, ("drain_grace",)),
            "limit_req": self._limit,
            "limit_conn": self._limit,
            "listen": self._listen,
        }

    def _read_timeout(self, directive: Directive) -> bool:
        value = nginx_time(directive.first())
        if not value:
            return False
        for setting in ("first_token_timeout", "stream_idle_timeout"):
            self.draft.put_timeout(setting, value, place_of(directive))
        return True

    def _no_retries(self, directive: Directive) -> bool:
        if directive.arguments != ("off",):
            return False
        comment = f"From {described(place_of(directive))}: no retries."
        self.draft.put_number(("retry", "attempts_max"), 1, place_of(directive), comment)
        return True

    def _tries(self, directive: Directive) -> bool:
        if not is_number(directive.first()) or directive.first() == "0":
            return False
        comment = f"From {described(place_of(directive))}."
        self.draft.put_number(("retry", "attempts_max"), int(directive.first()), place_of(directive), comment)
        return True

    def _body_size(self, directive: Directive) -> bool:
        if not (size := nginx_size(directive.first())):
            return False
        self.draft.put_body_size(size, place_of(directive))
        return True

    def _duration(self, path: tuple[str, ...], directive: Directive) -> bool:
        if not (value := nginx_time(directive.first())):
            return False
        self.draft.put_duration(path, value, place_of(directive), f"From {described(place_of(directive))}.")
        return True

    def _limit(self, directive: Directive) -> bool:
        self._limits.append(directive)
        return True

    def _listen(self, directive: Directive) -> bool:
        self.change(directive, f"nginx listens on {directive.first()}; set listen when you switch")
        return True

    def apply_limits(self) -> None:
        """Limits with a constant key become limits of the tenant of requests without a key."""
        for each in self._limits:
            zone_name = each.first().removeprefix("zone=")
            zone = self._zones.get(f"{each.name}_zone:{zone_name}")
            found = None if zone is None else _limit_of(each, zone)
            if zone is None or found is None:
                self.drop(each, "its zone is not defined or not valid")
                continue
            setting, limit = found
            if "$" in zone.first() and zone.first() != "$server_name":
                limited = f"it limits each {zone.first()}; Headgate limits tenants"
                self.drop(each, f"{limited}: create keys, and set {setting}: {limit} for each tenant")
            elif self.draft.key_reason:
                self.drop(each, f"limits belong to tenants: set {setting}: {limit} for each tenant")
            else:
                path = ("tenants", ANONYMOUS_TENANT, "limits", setting)
                self.draft.put_number(path, limit, place_of(each), f"From {described(place_of(each))}.")

    # Reporting

    def mark(self, directive: Directive) -> None:
        self._read.add(id(directive))

    def drop(self, directive: Directive, message: str | None = None) -> None:
        self.draft.file.drop(*place_of(directive), message or _MESSAGES.get(directive.name, NO_EQUIVALENT))

    def change(self, directive: Directive, message: str) -> None:
        self.draft.file.change(*place_of(directive), message)


def _limit_of(directive: Directive, zone: Directive) -> tuple[str, int] | None:
    if directive.name == "limit_conn":
        number = directive.arguments[-1] if directive.arguments else ""
        return ("concurrency", int(number)) if is_number(number) else None
    rate = next((each[5:] for each in zone.arguments if each.startswith("rate=")), "")
    per_minute = requests_per_minute(rate)
    return None if per_minute is None else ("requests_per_minute", int(per_minute))


def place_of(directive: Directive) -> tuple[int, str]:
    named = directive.name in ("location", "upstream", "limit_req", "limit_conn")
    return directive.line, " ".join([directive.name, *directive.arguments[: 2 if named else 0]])


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
