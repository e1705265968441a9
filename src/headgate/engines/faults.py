"""Classification of connection errors: their reason, and whether the engine or this process is at fault."""

import errno
import os
import re
import socket
import ssl
from typing import Final, NamedTuple

from headgate.model.endpoint import NAME_UNRESOLVED
from headgate.model.fault import Fault

_OWN_ERRORS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EADDRNOTAVAIL}
)
"""Errors caused by this process or its host, such as running out of file descriptors, memory, disk space or local
ports.
"""
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""Error codes that a working resolver returns for a name that does not exist.

Any other code means that the resolver failed.
"""

_ENGINE_WITHOUT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
_REJECTED_CERTIFICATE: Final = re.compile(
    r"_ALERT_(UNKNOWN_CA|(BAD|UNSUPPORTED)_CERTIFICATE|CERTIFICATE_(EXPIRED|REVOKED|UNKNOWN))"
)
# OpenSSL's codes for invalid certificates.
_X509_NOT_YET_VALID: Final = 9
_X509_EXPIRED: Final = 10
_X509_OTHER_NAME: Final = frozenset({62, 64})
_X509_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
"""The issuer is missing or not trusted."""


class TlsFailure(NamedTuple):
    reason: str
    next_step: str


def tls_failure(error: ssl.SSLError) -> TlsFailure:
    """Returns why a TLS handshake with an engine failed, without the engine's address, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _invalid_certificate(error)
    reason = error.reason or ""
    if "CERTIFICATE_REQUIRED" in reason:
        return TlsFailure("the engine requires a client certificate", "set the pool's tls.certificate and tls.key")
    if _REJECTED_CERTIFICATE.search(reason):
        return TlsFailure(
            f"the engine rejects the client certificate ({_words(reason)})",
            "set the pool's tls.certificate to one that the engine trusts",
        )
    if "ALERT_HANDSHAKE_FAILURE" in reason:
        # With TLS 1.2, servers send the same alert for a missing client certificate as for incompatible ciphers.
        return TlsFailure(
            "the engine rejects the TLS handshake, perhaps because it requires a client certificate",
            "set the pool's tls.certificate and tls.key, or check the engine's TLS settings",
        )
    if reason in _ENGINE_WITHOUT_TLS:
        return TlsFailure("the engine does not use TLS on this port", "write its URL with http, or correct the port")
    if "PROTOCOL_VERSION" in reason or reason == "UNSUPPORTED_PROTOCOL":
        return TlsFailure("the engine supports neither TLS 1.2 nor TLS 1.3", "enable one of them in the engine")
    return TlsFailure(f"the TLS connection failed ({_words(reason) or 'unknown reason'})", "check the engine's log")


def _invalid_certificate(error: ssl.SSLCertVerificationError) -> TlsFailure:
    code = error.verify_code
    if code == _X509_EXPIRED:
        return TlsFailure("the engine's certificate has expired", "renew it")
    if code == _X509_NOT_YET_VALID:
        return TlsFailure("the engine's certificate is not yet valid", "check the clocks of both machines")
    if code in _X509_OTHER_NAME:
        return TlsFailure(
            "the engine's certificate is for a different name",
            "set the pool's tls.server_name to a name in the certificate, or correct the host in the URL",
        )
    if code in _X509_UNKNOWN_AUTHORITY:
        return TlsFailure(
            "the engine's certificate is not issued by a trusted authority",
            "set the pool's tls.ca to the PEM file of the authority that issued it",
        )
    return TlsFailure(f"the engine's certificate is not valid ({error.verify_message})", "replace the certificate")


def _words(reason: str) -> str:
    return re.sub(r"^(TLSV\d+|SSLV3)_ALERT_", "", reason).replace("_", " ").lower()


def fault_of(error: BaseException | None, default: Fault) -> Fault:
    """Returns the fault behind an error: `GATEWAY` if this process is out of a resource or cannot resolve names."""
    match error:
        case socket.gaierror(errno=int(number)):
            return Fault.CONNECTION if number in _NO_SUCH_HOST else Fault.GATEWAY
        case OSError(errno=int(number)) if number in _OWN_ERRORS:
            return Fault.GATEWAY
        case MemoryError():
            return Fault.GATEWAY
        case _:
            return default


def failure_reason(error: BaseException | None) -> str:
    """Returns why a request to an engine failed, without the engine's address, because callers may see the reason."""
    match error:
        case None:
            return "the connection was closed"
        case socket.gaierror():
            return NAME_UNRESOLVED
        case ssl.SSLError():
            return tls_failure(error).reason
        case TimeoutError(errno=None):
            return "no response in time"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError():
            return "the connection was lost"
        case _:
            return type(error).__name__


def broken_off_message(error: Exception | None) -> str:
    reason = "the connection was closed" if error is None else failure_reason(error)
    return f"the engine's response was truncated: {reason}"


def unanswered_message(error: Exception | None) -> str:
    reason = "the connection was closed without a response" if error is None else failure_reason(error)
    return f"the request to the engine failed: {reason}"
