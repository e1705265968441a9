"""Rollouts of models: opens the service and connects it to the admin API."""

from headgate.config.settings import Settings
from headgate.control.rollouts.service import RolloutService
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.rollouts import rollout_routes
from headgate.ports.clock import Clock


def open_rollouts(settings: Settings, clock: Clock) -> RolloutService:
    """Opens the service. It observes the scheduler only if a model has routes, because each observer costs time."""
    return RolloutService(clock.now, observes=any(each.routes for each in settings.policy.models))


def connect(rollouts: RolloutService, api: AdminApi | None) -> None:
    """Adds the paths of rollouts to the admin API, and stores their state as overrides."""
    if api is None:
        rollouts.store = None
    else:
        rollouts.store = api.overrides
        api.add_routes(rollout_routes(rollouts))
