"""How does Headgate's autoscaler see the fluid model? As a gateway would tell it: figures every ten seconds."""

from bench.scaling.demand import STEP_S
from bench.scaling.fluid import TTFT_S, View
from headgate.core.autoscaling.autoscaler import Autoscaler, Figures
from headgate.model.engine_profile import EngineProfile
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, Duration, Instant, PoolName

_POOL = PoolName("main")


class Headgate:
    def __init__(self, load_percent: int, profile: EngineProfile, *, endpoints_max: int) -> None:
        rules = ScalingRules(
            endpoints_max=endpoints_max, load_percent=load_percent, period_ns=Duration(STEP_S * SECOND)
        )
        self._autoscaler = Autoscaler({_POOL: rules})
        self._kv_tokens_each = profile.kv_blocks * profile.block_tokens

    def wanted(self, view: View) -> int:
        figures = Figures(
            pool=_POOL,
            demand_ppm=round(view.work * 1e6),
            backlog_ns=round(view.waiting_s * SECOND),
            ttft_ns=Duration(round(TTFT_S * SECOND)),
            kv_tokens_used=round(view.kv_tokens),
            kv_tokens_each=self._kv_tokens_each,
            ready=view.ready,
            warming=view.warming,
            draining=view.draining,
            starting_ns=Duration(view.starting_s * SECOND),
        )
        scales = self._autoscaler.tick([figures], Instant(view.now_s * SECOND))
        return scales[0].endpoints if scales else view.ready + view.warming

    def started(self, took_s: int) -> None:
        self._autoscaler.started(_POOL, Duration(took_s * SECOND))
