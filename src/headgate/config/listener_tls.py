"""TLS settings of the listeners.

Only the settings are read here. The files are checked when a gateway starts (`certificate_problems`), because other
commands also read the configuration on machines that do not have the files.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headgate.config.problems import ConfigReport
from headgate.config.schema import AdminListenTlsSection, ListenTlsSection
from headgate.config.settings import Settings
from headgate.ports.tls import (
    ClientTlsOptions,
    InvalidTlsFile,
    ServerTlsOptions,
    named_client_context,
    timestamp_text,
    usable_server_context,
    usable_validity,
)

EXPIRY_WARNING_S: Final = 14 * 86_400
_DAY_S: Final = 86_400
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


class CertificateFinding(NamedTuple):
    setting: str
    message: str


def server_tls(section: ListenTlsSection | AdminListenTlsSection | None, file: str) -> ServerTlsOptions | None:
    """Options of a listener. Relative paths are relative to the configuration file `file`."""
    if section is None:
        return None
    client_ca = None if section.client_ca is None else _path(section.client_ca, file)
    return ServerTlsOptions(_path(section.certificate, file), _path(section.key, file), client_ca)


def admin_client_tls(section: AdminListenTlsSection | None, file: str) -> ClientTlsOptions | None:
    """Options for calls to the admin listener, by the commands and by the other gateways of the cell."""
    if section is None:
        return None
    # A listener that requires client certificates also requires them from the gateways of its own cell.
    has_own = section.client_ca is not None
    return ClientTlsOptions(
        ca=None if section.ca is None else _path(section.ca, file),
        certificate=_path(section.certificate, file) if has_own else None,
        key=_path(section.key, file) if has_own else None,
        server_name=section.server_name,
    )


def check_admin_tls(section: AdminListenTlsSection | None, report: ConfigReport) -> None:
    if section is not None and section.server_name is not None and not _SERVER_NAME.fullmatch(section.server_name):
        report.add_problem(("admin_listen_tls", "server_name"), "is not a host name; write it without scheme and port")


def certificate_problems(settings: Settings, now_s: float, *, serves: bool = True) -> Iterator[CertificateFinding]:
    """Files that a gateway cannot start with. Without `serves`, the process has only an admin listener."""
    for setting, options in listeners_with_tls(settings, serves=serves):
        try:
            usable_server_context(options, now_s)
            if setting == "admin_listen_tls" and settings.admin_client_tls is not None:
                named_client_context(settings.admin_client_tls)
        except InvalidTlsFile as problem:
            yield CertificateFinding(setting, str(problem))


def certificate_warnings(settings: Settings, now_s: float) -> Iterator[CertificateFinding]:
    """Certificates that expire soon. Must not be called if there are problems."""
    for setting, options in listeners_with_tls(settings):
        expires_at = usable_validity(options.certificate, now_s).expires_at
        if (left_s := expires_at - now_s) < EXPIRY_WARNING_S:
            message = (
                f"the certificate in {options.certificate} expires in {left_s / _DAY_S:.1f} days, on "
                f"{timestamp_text(expires_at)}; renew it"
            )
            yield CertificateFinding(setting, message)


def listeners_with_tls(settings: Settings, *, serves: bool = True) -> Iterator[tuple[str, ServerTlsOptions]]:
    if serves and settings.listen_tls is not None:
        yield "listen_tls", settings.listen_tls
    if settings.admin_listen_tls is not None:
        yield "admin_listen_tls", settings.admin_listen_tls


def _path(text: str, file: str) -> str:
    return str((Path(file).parent / text).absolute())
