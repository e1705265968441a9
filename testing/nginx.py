"""A real nginx for tests."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from testing.processes import MissingProgram

_CONFIGURATION = """\
daemon off;
pid {folder}/pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{block}
}}
"""


def nginx_command(folder: Path, block: str) -> Sequence[str | Path]:
    """Write `folder/nginx.conf` with these contents of the `http` block, and return the command that runs nginx."""
    file = folder / "nginx.conf"
    file.write_text(_CONFIGURATION.format(folder=folder, block=block))
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise MissingProgram("nginx is not installed; run apt-get install nginx-light")
    return [program, "-p", folder, "-c", file, "-e", "stderr"]
