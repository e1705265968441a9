"""Reads the TLS settings of listeners and engine connections in an Envoy configuration."""

from dataclasses import dataclass
from typing import Final

from headgate.config.convert.draft import Draft, described
from headgate.config.convert.envoy_resources import EnvoyResources, type_of
from headgate.config.convert.source import SourceSection

_COMMON: Final = (
    ("tls_params", "Headgate offers TLS 1.2 and 1.3 with OpenSSL's ciphers"),
    ("alpn_protocols", "Headgate selects the protocol by itself"),
)
_VALIDATION: Final = (
    ("match_typed_subject_alt_names", "Headgate verifies the host of the URL, or tls.server_name of the pool"),
    ("match_subject_alt_names", "Headgate verifies the host of the URL, or tls.server_name of the pool"),
)
_VERIFIED: Final = (
    "Envoy does not verify the engines' certificates without a trusted_ca, and Headgate always does; set tls.ca of the "
    "pool for a private authority"
)


@dataclass(frozen=True, slots=True)
class EnvoyTls:
    draft: Draft
    resources: EnvoyResources

    def of_cluster(self, socket: SourceSection) -> tuple[str, dict[str, str]] | None:
        """Scheme and `tls` section of a pool; None if Headgate does not support the transport."""
        context = self._context(socket, "UpstreamTlsContext")
        if not isinstance(context, SourceSection):
            return ("http", {}) if context else None
        common = context.section("common_tls_context")
        found = self._files(common)
        if "ca" not in found:
            socket.change("", _VERIFIED)
        if name := context.text("sni"):
            found["server_name"] = name
        context.drop("auto_host_sni", "auto_sni_san_validation", message="set tls.server_name of the pool")
        common.drop_all(_COMMON)
        return "https", found

    def of_listener(self, socket: SourceSection) -> None:
        context = self._context(socket, "DownstreamTlsContext")
        if not isinstance(context, SourceSection):
            return
        common = context.section("common_tls_context")
        found = self._files(common)
        common.drop_all(_COMMON)
        required = context.flag("require_client_certificate")
        if not required and found.pop("ca", None):
            context.change("common_tls_context", "clients need no certificate; set listen_tls.client_ca if they do")
        if "certificate" not in found or self.draft.get(("listen_tls",)) is not None:
            socket.report("only one certificate with its key, both in files, can be carried over")
            return
        for setting, path in found.items():
            name = "client_ca" if setting == "ca" else setting
            self.draft.put(("listen_tls", name), path, f"From {described(socket.at())}.")

    @staticmethod
    def _context(socket: SourceSection, kind: str) -> SourceSection | bool:
        """The TLS settings of a socket, or else whether it is plain."""
        if not socket.names():
            return True
        socket.skip("name")
        context = socket.section("typed_config")
        if (found := type_of(context)) == kind:
            return context
        context.skip()
        if found != "RawBuffer":
            socket.report("only TLS and plain connections can be carried over")
        return found == "RawBuffer"

    def _files(self, common: SourceSection) -> dict[str, str]:
        """Files with the authority, the certificate and its key."""
        found: dict[str, str] = {}
        combined = common.section("combined_validation_context")
        validations = [
            common.section("validation_context"),
            combined.section("default_validation_context"),
            self._secret(common, "validation_context_sds_secret_config").section("validation_context"),
            self._secret(combined, "validation_context_sds_secret_config").section("validation_context"),
        ]
        for each in validations:
            if authority := self._file(each, "trusted_ca", "tls.ca"):
                found.setdefault("ca", authority)
            each.drop_all(_VALIDATION)
        certificates = common.sections("tls_certificates")
        for each in common.sections("tls_certificate_sds_secret_configs"):
            certificates.append(self._named_secret(each).section("tls_certificate"))
        for number, each in enumerate(certificates):
            chain, key = self._file(each, "certificate_chain", "certificate"), self._file(each, "private_key", "key")
            if number == 0 and chain and key:
                found |= {"certificate": chain, "key": key}
            elif number:
                each.report("only the first certificate is carried over")
            each.drop("password", message="Headgate reads keys without a password")
        return found

    def _secret(self, section: SourceSection, name: str) -> SourceSection:
        return self._named_secret(section.section(name))

    def _named_secret(self, reference: SourceSection) -> SourceSection:
        """The static secret with the name in a reference; an empty section if there is none."""
        name = reference.text("name")
        if name is not None and name not in self.resources.secrets:
            reference.skip()
            reference.report("the secret is not in the source; write it to files")
            return reference.section("")
        return reference.section("") if name is None else self.resources.secrets[name]

    @staticmethod
    def _file(section: SourceSection, name: str, setting: str) -> str | None:
        """Path of a data source. Other data sources are reported, because the gateway reads certificates from files."""
        source = section.section(name)
        path = source.text("filename")
        if not path and source.names():
            source.skip()
            source.report(f"write it to a file, and set {setting} to its path")
        return path or None
