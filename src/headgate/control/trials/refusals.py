"""Why a setting cannot be tried on live traffic."""

import re
from typing import Final

from headgate.model.live_settings import LIVE_SETTINGS

_REASONS: Final = (
    (r"models\..+\.(routes|weight).*", "a route serves a share of the requests; use `headgate rollout`"),
    (r"classes\..+\.(ttft|tpot|e2e|objectives).*", "it is part of the promise by which a trial is judged"),
    (r"classes\..+\.(caps|degradation_steps).*", "it changes what callers receive"),
    (r"classes\..+\.(pools|priority_band|service_tiers|accepts_unclassified|prompt_tokens_max)",
     "it changes which requests belong to a class or where they go, so the classes could not be compared"),
    (r"pools\..+\.(fleet|scaling|endpoints).*", "starting and stopping engines takes longer than a block"),
    (r"pools\..+\.batching.*", "gateways apply it, not the scheduler, so it cannot change for all at the same moment"),
    (r"pools\..+\.(speed|kv_tokens|prices).*", "it describes the engines"),
    (r"tenants\..*", "it would treat tenants differently during the trial"),
    (r"(listen|admin_listen|cell|database|ledger|identity|records|audit|notifications|scaler_listen).*",
     "it needs a restart or changes no scheduling"),
)  # fmt: skip


def refusal(path: str) -> str:
    """Returns why this setting cannot be tried, with the next step."""
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, path):
            return f"{path} cannot be tried on live traffic: {reason}"
    known = ", ".join(each.pattern for each in LIVE_SETTINGS)
    return f"{path} is not a setting that can be tried on live traffic; available: {known}"
