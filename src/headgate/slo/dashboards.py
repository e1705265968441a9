"""What is to be seen in Grafana, on which dashboard?

Every metric of the catalogue is on a panel or among those not shown, each with the reason.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.slo.boards.fleet import FLEET
from headgate.slo.boards.gateway import CELL, GATEWAY
from headgate.slo.boards.requests import OVERVIEW, QUEUES
from headgate.slo.boards.spent import COST, STAGES

DASHBOARDS: Final = (OVERVIEW, QUEUES, FLEET, STAGES, COST, CELL, GATEWAY)

NOT_SHOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "headgate_cell_epoch": "a number that only rises; a change of scheduler shows in who leads",
        "headgate_directory_tenants": "a number that says nothing about health; `headgate status` has it",
        "headgate_directory_keys": "a number that says nothing about health; `headgate status` has it",
    }
)
