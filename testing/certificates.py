"""Certificate authorities for tests, and PEM files with the certificates that they issue."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme

from headgate.ports.tls import ClientTlsOptions, ServerTlsOptions

HOST = "127.0.0.1"
PAST = {"starts_in": timedelta(days=-2), "expires_in": timedelta(days=-1)}
"""Validity of a certificate that has expired."""


class CertificateFiles(NamedTuple):
    certificate: str
    key: str


class Authority:
    """A certificate authority whose files are in one directory."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.file = str(folder / "ca.pem")
        self.pem = self._ca.cert_pem.bytes().decode()
        """Content of the file."""
        Path(self.file).write_text(self.pem)

    def issue(
        self,
        name: str = "tls",
        *identities: str,
        starts_in: timedelta = timedelta(days=-1),
        expires_in: timedelta = timedelta(days=90),
    ) -> CertificateFiles:
        """Write NAME.crt and NAME.key, replacing older ones as a whole. The certificate is for 127.0.0.1 unless
        `identities` are given.
        """
        now = datetime.now(UTC)
        leaf = self._ca.issue_cert(*(identities or (HOST,)), not_before=now + starts_in, not_after=now + expires_in)
        files = CertificateFiles(str(self._folder / f"{name}.crt"), str(self._folder / f"{name}.key"))
        _replace(files.certificate, b"".join(each.bytes() for each in leaf.cert_chain_pems))
        _replace(files.key, leaf.private_key_pem.bytes())
        return files

    def server(self, *identities: str, client_ca: str | None = None, **validity: timedelta) -> ServerTlsOptions:
        """Options with a new certificate, which is for 127.0.0.1 and localhost unless `identities` are given.

        The server requires a client certificate if there is a `client_ca`.
        """
        return ServerTlsOptions(*self.issue("server", *(identities or (HOST, "localhost")), **validity), client_ca)

    def client(self, name: str = "gateway", *, ca: str | None = None) -> ClientTlsOptions:
        """Options with a new client certificate, which trust this authority or `ca`."""
        return ClientTlsOptions(ca or self.file, *self.issue(name, f"{name}.example"))

    def client_context(self, own: CertificateFiles | None = None) -> ssl.SSLContext:
        """Context that trusts this authority and presents the client certificate `own`."""
        context = ssl.create_default_context(cafile=self.file)
        if own is not None:
            context.load_cert_chain(*own)
        return context


def _replace(path: str, content: bytes) -> None:
    Path(f"{path}.new").write_bytes(content)
    Path(f"{path}.new").replace(path)
