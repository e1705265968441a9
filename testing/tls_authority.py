"""Certificates for tests, issued by a certificate authority that exists only during the test.

authority = Authority(tmp_path)
FakeEngine(tls=server_context(authority.server()))               # requires no client certificate
FakeEngine(tls=server_context(authority.server(client_ca=...)))  # requires one
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509

from headgate.ports.tls import ClientTlsOptions, ServerTlsOptions


class Authority:
    """A certificate authority that writes its files to a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.file = directory / "ca.pem"
        self.serial_of: dict[str, int] = {}
        """Serial number of the latest certificate with each name."""
        self._authority.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, *identities: str, expired: bool = False) -> tuple[Path, Path]:
        """Writes a certificate and its key as `NAME.pem` and `NAME.key`, replacing earlier ones."""
        expires_at = datetime.now(UTC) + timedelta(days=-1 if expired else 30)
        issued = self._authority.issue_cert(
            *identities, not_before=expires_at - timedelta(days=90), not_after=expires_at
        )
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.serial_of[name] = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
        issued.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return certificate, key

    def server(
        self, *identities: str, name: str = "server", client_ca: Path | None = None, expired: bool = False
    ) -> ServerTlsOptions:
        certificate, key = self.issue(name, *(identities or ("127.0.0.1", "localhost")), expired=expired)
        return ServerTlsOptions(str(certificate), str(key), None if client_ca is None else str(client_ca))

    def client(self, name: str = "gateway", *, ca: Path | None = None) -> ClientTlsOptions:
        """Options with a client certificate from this authority that trust this authority, or `ca`."""
        certificate, key = self.issue(name, f"{name}.example")
        return ClientTlsOptions(str(ca or self.file), str(certificate), str(key))
