"""Checks the certificate and key files that a configuration names, before the configuration is used."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate.config.problems import ConfigErrors, ConfigProblem
from headgate.config.settings import Settings
from headgate.control.options import file_stamp
from headgate.ports.tls import ClientTlsOptions, InvalidTlsFile, certificate_validity, client_context

_DAY_S: Final = 86_400
EXPIRES_SOON_S: Final = 14 * _DAY_S


def check_tls_files(settings: Settings, file: str) -> Settings:
    """Returns the settings. Raises `ConfigErrors` if a file cannot be used. `file` is the configuration file."""
    # Take the stamps first, so that a later change is noticed and a rejected configuration is read again.
    stamps = {Path(each): file_stamp(Path(each)) for _, options in _clients(settings) for each in options.files}
    if found := tuple(tls_problems(settings, file)):
        raise ConfigErrors(found, {**settings.files, **stamps})
    return settings


def tls_problems(settings: Settings, file: str) -> Iterator[ConfigProblem]:
    """One problem for each section whose files cannot be used."""
    for setting, options in _clients(settings):
        try:
            client_context(options)
        except InvalidTlsFile as error:
            yield ConfigProblem(file, None, setting, f"{error}; correct the file or its path")


def tls_warnings(settings: Settings, file: str, now_s: float | None = None) -> Iterator[ConfigProblem]:
    """Client certificates that have expired or will soon."""
    now_s = time.time() if now_s is None else now_s
    for setting, options in _clients(settings):
        if options.certificate is None:
            continue
        try:
            left_s = certificate_validity(options.certificate).expires_at - now_s
        except InvalidTlsFile:
            continue  # `tls_problems` reports it.
        if left_s < EXPIRES_SOON_S:
            state = "has expired" if left_s <= 0 else f"expires in {int(left_s / _DAY_S)} days"
            yield ConfigProblem(file, None, setting, f"the certificate in {options.certificate} {state}; renew it")


def _clients(settings: Settings) -> Iterator[tuple[str, ClientTlsOptions]]:
    for pool in settings.pools:
        if pool.tls is not None:
            yield f"pools.{pool.name}.tls", pool.tls
    for issuer in settings.issuers:
        if issuer.tls is not None:
            yield f"identity.issuers.{issuer.name}.tls", issuer.tls
