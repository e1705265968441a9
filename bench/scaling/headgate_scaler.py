"""Headgate's autoscaler on the fluid model, with the metrics a gateway reports every ten seconds."""

from dataclasses import replace
from typing import Final

from bench.scaling.demand import STEP_S
from bench.scaling.fluid import TTFT_S, FleetView
from headgate.core.autoscaling.autoscaler import Autoscaler, ScalingMetrics
from headgate.model.engine_profile import EngineProfile
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, Duration, Instant, PoolName

_POOL = PoolName("main")


REQUESTS_COUNTED: Final = 1_000
"""Factor from modelled requests to counted requests. The model has fractional requests; a gateway counts whole ones."""


class HeadgateScaler:
    def __init__(
        self,
        load_percent: int,
        profile: EngineProfile,
        *,
        endpoints_max: int,
        work_percent: int = 100,
        corrects: bool = False,
    ) -> None:
        """`work_percent` is the predicted work as a percentage of the actual work. It models a wrong `speed`."""
        rules = ScalingRules(
            endpoints_max=endpoints_max, target_utilization_percent=load_percent, period_ns=Duration(STEP_S * SECOND)
        )
        if not corrects:
            rules = replace(rules, correction_percent_min=100, correction_percent_max=100)
        self._work = work_percent / 100
        self._autoscaler = Autoscaler({_POOL: rules})
        self._kv_tokens_each = profile.kv_blocks * profile.block_tokens

    def desired(self, view: FleetView) -> int:
        figures = ScalingMetrics(
            pool=_POOL,
            demand_ppm=round(self._work * view.work * 1e6),
            backlog_ns=round(self._work * view.waiting_s * SECOND),
            ttft_ns=Duration(round(TTFT_S * SECOND)),
            kv_tokens_used=round(view.kv_tokens),
            kv_tokens_each=self._kv_tokens_each,
            ready=view.ready,
            warming=view.warming,
            draining=view.draining,
            starting_ns=Duration(view.starting_s * SECOND),
            judged=round(view.rate * STEP_S * REQUESTS_COUNTED),
            missed=round(view.rate * STEP_S * REQUESTS_COUNTED * view.missed),
        )
        scales = self._autoscaler.tick([figures], Instant(view.now_s * SECOND))
        return scales[0].endpoints if scales else view.ready + view.warming

    @property
    def factor(self) -> float:
        """Correction factor for predicted work, derived from measured attainment."""
        return self._autoscaler.correction_ppm(_POOL) / 1e6

    def on_endpoint_ready(self, took_s: int) -> None:
        self._autoscaler.record_cold_start(_POOL, Duration(took_s * SECOND))
