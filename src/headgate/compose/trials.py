"""Setting trials: opens the service and connects it to the admin API."""

import asyncio

from headgate.compose.fleets import Fleets
from headgate.config.live_values import LiveValueNotation
from headgate.config.settings import Settings
from headgate.control.trials.service import TrialService
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.trials import trial_routes
from headgate.ports.clock import Clock


def open_trials(settings: Settings, clock: Clock, changing: asyncio.Lock) -> TrialService:
    """Opens the service. It observes the scheduler only if an operator can start a trial, because each observer costs
    time.
    """
    observes = bool(settings.admin_keys) or settings.operators is not None
    return TrialService(clock.now, LiveValueNotation(), changing, observes=observes)


def connect_trials(trials: TrialService, api: AdminApi | None, fleets: Fleets) -> None:
    """Adds the paths of trials to the admin API, and stores their state as overrides."""
    trials.in_flight_limits = fleets.in_flight_limits
    if api is None:
        trials.store = None
    else:
        trials.store = api.overrides
        api.add_routes(trial_routes(trials))
