"""TLS for requests to a running gateway's admin listener.

The authorities and the client certificate come from the environment, or else from `admin_listen_tls` in the
configuration file.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

ADMIN_CA_VARIABLE: Final = "HEADGATE_ADMIN_CA"
"""PEM file with the authorities that issue the admin listener's certificate."""
ADMIN_CERTIFICATE_VARIABLE: Final = "HEADGATE_ADMIN_CERTIFICATE"
"""PEM file with a client certificate and its private key."""


def admin_tls(url: str, file: Path) -> "ssl.SSLContext | None":
    """Context for requests to this admin URL; None without TLS. If a file cannot be used, prints why and exits."""
    if not url.startswith("https://"):
        return None
    from headgate.cli.output.status import base_url
    from headgate.config.load import admin_listen
    from headgate.config.load import admin_tls as options_in_file
    from headgate.config.problems import ConfigErrors
    from headgate.ports.tls import ClientTlsOptions, InvalidTlsFile, named_client_context

    options = ClientTlsOptions()
    try:
        options = options_in_file(file, os.environ) or options
        # The URL is that of another gateway, whose certificate may contain a different name.
        if base_url(*admin_listen(file, os.environ), https=True) != url:
            options = replace(options, server_name=None)
    except ConfigErrors:
        # With a URL, the command works without a configuration file.
        pass
    if ca := os.environ.get(ADMIN_CA_VARIABLE):
        options = replace(options, ca=ca)
    if certificate := os.environ.get(ADMIN_CERTIFICATE_VARIABLE):
        options = replace(options, certificate=certificate, key=None)
    try:
        return named_client_context(options)
    except InvalidTlsFile as problem:
        hint = f"{ADMIN_CA_VARIABLE} and {ADMIN_CERTIFICATE_VARIABLE} override the files of admin_listen_tls"
        print(f"headgate: {problem}; {hint}", file=sys.stderr)
        raise SystemExit(1) from None


def trust_hint(why: str) -> str:
    """Next step after a failed TLS connection; empty if the failure has another cause."""
    if "certificate is not trusted" in why:
        return f"set {ADMIN_CA_VARIABLE} to the PEM file of the authority that issued it"
    if "TLS handshake failed" in why:
        return f"check that the URL is the admin listener, and set {ADMIN_CERTIFICATE_VARIABLE} if it requires one"
    if "was closed without a response" in why:
        other = f"set {ADMIN_CERTIFICATE_VARIABLE} if it requires a client certificate"
        return other if "https://" in why else "use https:// if its admin listener has TLS"
    return ""
