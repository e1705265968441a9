"""All Grafana dashboards.

Every metric in the catalogue is either shown on a panel or listed in `NOT_SHOWN` with a reason.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.slo.boards.fleet import FLEET
from headgate.slo.boards.gateway import CELL, GATEWAY
from headgate.slo.boards.requests import OVERVIEW, QUEUES
from headgate.slo.boards.stages_and_cost import COST, STAGES

DASHBOARDS: Final = (OVERVIEW, QUEUES, FLEET, STAGES, COST, CELL, GATEWAY)

NOT_SHOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "headgate_cell_epoch": "only increases; the panel `Leader` shows a change of scheduler",
        "headgate_directory_tenants": "not a health signal; `headgate status` shows it",
        "headgate_directory_keys": "not a health signal; `headgate status` shows it",
        "headgate_sessions": "the index is small and bounded; its effect shows in the prefix cache hits",
        "headgate_setting_trial_running": "not a health signal; `headgate tune --live status` shows it",
        "headgate_setting_trial_new_value": "not a health signal; `headgate tune --live status` shows it",
        "headgate_setting_trials_total": "not a health signal; `headgate tune --live status` shows the result",
        "headgate_prefix_index_entries": "the panel `Prefix index size` shows the memory of the index",
    }
)
