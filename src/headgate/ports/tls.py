"""TLS options and contexts, for servers and clients.

Files are read when a context is created. A context that serves a listener can be replaced while connections are open
(edge/tls_handshake.py).
"""

import errno
import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from headgate.wire.certificate import InvalidCertificate, Validity, validity

_OTHER_KEY: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""OpenSSL's reasons for a key that does not belong to the certificate. A renewed key may have a different type."""
CERTIFICATE_BYTES_MAX: Final = 1024 * 1024
_READS_MAX: Final = 5
"""Maximum number of attempts to read files that change while they are being read."""


@dataclass(frozen=True, slots=True)
class ServerTlsOptions:
    """Certificate of a listener."""

    certificate: str
    """PEM file with the certificate, followed by intermediate certificates."""
    key: str
    """PEM file with the private key."""
    client_ca: str | None = None
    """PEM file with the authorities that issue client certificates. None if clients need no certificate."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each for each in (self.certificate, self.key, self.client_ca) if each is not None)


@dataclass(frozen=True, slots=True)
class ClientTlsOptions:
    """How a server is verified, and the certificate that is presented to it."""

    ca: str | None = None
    """PEM file with the authorities that issue server certificates. None for those of the system."""
    certificate: str | None = None
    """PEM file with the client certificate; None if the server requires none."""
    key: str | None = None
    """PEM file with the private key of the client certificate."""
    server_name: str | None = None
    """Name that the server's certificate must contain. None for the host in the URL."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each for each in (self.ca, self.certificate, self.key) if each is not None)


class UsableCertificate(NamedTuple):
    """A listener's certificate that was valid when its files were read."""

    context: ssl.SSLContext
    expires_at: int
    digest: bytes
    """Hash of the certificate file. A renewed certificate may expire at the same time as the previous one."""


class InvalidTlsFile(Exception):
    """A certificate or key file cannot be used. The message names the file and the reason."""


class NamedContext(ssl.SSLContext):
    """Client context that verifies a fixed name in place of the host in the URL."""

    server_name: str

    def wrap_socket(self, *args: Any, **keywords: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**keywords, "server_hostname": self.server_name})

    def wrap_bio(self, incoming: Any, outgoing: Any, server_side: bool = False, *_: Any, **__: Any) -> ssl.SSLObject:  # noqa: FBT001, FBT002 (overridden)
        return super().wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=self.server_name)


def server_context(options: ServerTlsOptions) -> ssl.SSLContext:
    """Raises `InvalidTlsFile`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    _load_certificate(context, options.certificate, options.key)
    if options.client_ca is not None:
        _load_authorities(context, options.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session would not verify the client's certificate again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def usable_server_context(
    options: ServerTlsOptions, now_s: float, *, load: Callable[[ServerTlsOptions], ssl.SSLContext] = server_context
) -> UsableCertificate:
    """Raises `InvalidTlsFile`, also if the certificate is not valid now."""
    for _ in range(_READS_MAX):
        before = [_read(file) for file in options.files]
        valid = usable_validity(options.certificate, now_s)
        context = load(options)
        # OpenSSL reads the files again. If one was replaced in between, it may not be the one that was checked.
        if [_read(file) for file in options.files] == before:
            return UsableCertificate(context, valid.expires_at, hashlib.sha256(before[0]).digest())
    raise InvalidTlsFile(f"{options.certificate} or its key changed while they were being read")


def client_context(options: ClientTlsOptions) -> ssl.SSLContext:
    """Raises `InvalidTlsFile`."""
    context = ssl.create_default_context() if options.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_client_files(context, options)
    return context


def named_client_context(options: ClientTlsOptions) -> ssl.SSLContext:
    """Like `client_context`, for HTTP clients that cannot pass `server_name` themselves. Raises `InvalidTlsFile`."""
    if options.server_name is None:
        return client_context(options)
    context = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = options.server_name
    if options.ca is None:
        context.load_default_certs()
    _load_client_files(context, options)
    return context


def usable_validity(path: str, now_s: float) -> Validity:
    """Returns the validity of a certificate that is valid now. Raises `InvalidTlsFile`."""
    found = certificate_validity(path)
    if found.expires_at <= now_s:
        raise InvalidTlsFile(f"the certificate in {path} expired on {timestamp_text(found.expires_at)}")
    if found.starts_at > now_s:
        raise InvalidTlsFile(
            f"the certificate in {path} is not valid until {timestamp_text(found.starts_at)}; check the clock"
        )
    return found


def timestamp_text(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def certificate_validity(path: str) -> Validity:
    """Raises `InvalidTlsFile`."""
    try:
        return validity(_read(path))
    except InvalidCertificate as error:
        raise InvalidTlsFile(f"{path} {error}") from error


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])


def _load_client_files(context: ssl.SSLContext, options: ClientTlsOptions) -> None:
    _restrict(context)
    if options.ca is not None:
        _load_authorities(context, options.ca)
    if options.certificate is not None:
        _load_certificate(context, options.certificate, options.key or options.certificate)


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    certificate_validity(certificate)
    _read(key)
    try:
        # An encrypted key would make OpenSSL ask for its password on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason in _OTHER_KEY:
            raise InvalidTlsFile(f"the key in {key} does not belong to the certificate in {certificate}") from error
        raise InvalidTlsFile(f"{key} contains no usable private key ({_reason(error)})") from error
    except OSError as error:
        raise InvalidTlsFile(f"{certificate} or {key} cannot be read: {_strerror(error)}") from error


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    _read(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise InvalidTlsFile(f"{ca} contains no PEM certificate") from error
    except OSError as error:
        raise InvalidTlsFile(f"{ca} cannot be read: {_strerror(error)}") from error


def _read(path: str) -> bytes:
    """Returns the contents of a file that is small enough to be a certificate or a key."""
    try:
        with Path(path).open("rb") as file:
            contents = file.read(CERTIFICATE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidTlsFile(f"{path} cannot be read: {_strerror(error)}") from error
    except ValueError as error:
        raise InvalidTlsFile(f"{path!r} is not a valid path") from error
    if len(contents) > CERTIFICATE_BYTES_MAX:
        raise InvalidTlsFile(f"{path} exceeds {CERTIFICATE_BYTES_MAX} bytes")
    return contents


def _no_password() -> bytes:
    return b""


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unknown format").replace("_", " ").lower()


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno or errno.EIO).lower()
