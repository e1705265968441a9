"""The operator's key, read from the environment.

On the command line it would be visible in the shell history and in the process list.
"""

import os
from collections.abc import Mapping

ADMIN_KEY_VARIABLE = "HEADGATE_ADMIN_KEY"


def operator_headers() -> Mapping[str, str]:
    """Headers for requests to the admin pages. A gateway without a login ignores them."""
    key = os.environ.get(ADMIN_KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}
