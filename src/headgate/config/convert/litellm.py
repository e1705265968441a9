"""Reads the `config.yaml` of a LiteLLM proxy.

Deployments of one `model_name` become endpoints. Only servers with an OpenAI-compatible API can be endpoints, because
Headgate does not translate between APIs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from headgate.config.convert.draft import Draft, PoolDraft
from headgate.config.convert.litellm_accounts import AccountReader
from headgate.config.convert.source import SourceSection
from headgate.model.money import NANO_USD_PER_USD

_ENVIRONMENT: Final = "os.environ/"
_OPENAI_API: Final = "https://api.openai.com"
_COMPATIBLE: Final = "openai_compatible"

# Provider prefixes of servers whose API LiteLLM forwards without translation, with Headgate's engine.
_ENGINES: Final = MappingProxyType(
    {
        "hosted_vllm": "vllm",
        "vllm": "vllm",
        "openai": _COMPATIBLE,
        "text-completion-openai": _COMPATIBLE,
        "custom_openai": _COMPATIBLE,
        "openai_like": _COMPATIBLE,
        "litellm_proxy": _COMPATIBLE,
        "llamafile": _COMPATIBLE,
        "lm_studio": _COMPATIBLE,
        "nvidia_nim": _COMPATIBLE,
        "ollama": _COMPATIBLE,
        "ollama_chat": _COMPATIBLE,
        "xinference": _COMPATIBLE,
    }
)
# Other prefixes that may begin a model name. A prefix in neither list belongs to the engine's own model name.
_TRANSLATED: Final = frozenset(
    {"anthropic", "azure", "azure_ai", "bedrock", "cloudflare", "cohere", "cohere_chat", "databricks", "deepseek"}
    | {"fireworks_ai", "gemini", "groq", "huggingface", "mistral", "openrouter", "perplexity", "predibase", "replicate"}
    | {
        "sagemaker",
        "sagemaker_chat",
        "together_ai",
        "triton",
        "vertex_ai",
        "vertex_ai_beta",
        "voyage",
        "watsonx",
        "xai",
    }
)
_DEPLOYMENT: Final = (
    ("rpm", "Headgate limits tenants (tenants.NAME.limits) and concurrency (in_flight_max), not endpoint rates"),
    ("tpm", "Headgate limits tenants (tenants.NAME.limits) and concurrency (in_flight_max), not endpoint rates"),
    ("weight", "Headgate routes by predicted time, without weights"),
    (
        "order",
        "Headgate uses all endpoints of a model; for a standby, make it a model of its own and list it in fallbacks",
    ),
    ("timeout", "timeouts belong to classes; set classes.NAME.attempt_timeout"),
    ("stream_timeout", "timeouts belong to classes; set classes.NAME.first_token_timeout"),
    ("tags", "Headgate routes by class, plan and tenant (models.NAME.tiers)"),
)
_ROUTER: Final = (
    ("routing_strategy_args", "Headgate routes by predicted time"),
    ("context_window_fallbacks", "give the model tiers with prompt_tokens_max instead"),
    ("content_policy_fallbacks", "Headgate does not interpret engine errors"),
    (
        "enable_pre_call_checks",
        "engines reject prompts that are too long; classes.NAME.caps.prompt_tokens does so earlier",
    ),
    ("disable_cooldowns", "endpoints that fail are always ejected (health)"),
    ("allowed_fails_policy", "failures are attributed to endpoints, requests and tenants automatically"),
    ("retry_policy", "the scheduler decides by the kind of failure; retry.attempts_max limits all attempts"),
    ("retry_after", "retries wait in the queue like other requests"),
    ("enable_tag_filtering", "Headgate routes by class, plan and tenant (models.NAME.tiers)"),
    ("redis_host", "gateways that share state form a cell; see the setting cell"),
    ("redis_port", "gateways that share state form a cell; see the setting cell"),
    ("redis_password", "gateways that share state form a cell; see the setting cell"),
    ("redis_url", "gateways that share state form a cell; see the setting cell"),
)
_GENERAL: Final = (
    ("database_url", "export teams and keys, and convert them with --accounts; Headgate's own database is optional"),
    ("store_model_in_db", "models in the database are not in this file; add them to model_list and convert again"),
    ("alerting", "`headgate generate rules` writes Prometheus alert rules"),
    ("background_health_checks", "Headgate always probes the engines"),
    ("health_check_interval", "Headgate always probes the engines"),
    ("allowed_ips", "restrict the network, or clients with listen_tls.client_ca"),
)
_LIBRARY: Final = (
    ("cache", "Headgate does not cache responses"),
    ("cache_params", "Headgate does not cache responses"),
    ("success_callback", "see docs/guides/tracing.md and the ledger"),
    ("failure_callback", "see docs/guides/tracing.md and the ledger"),
    ("callbacks", "see docs/guides/tracing.md and the ledger"),
)


@dataclass(frozen=True, slots=True)
class LitellmReader:
    draft: Draft
    accounts: AccountReader
    environ: Mapping[str, str]
    engine: str | None
    """Engine of deployments with the generic provider `openai`."""

    def read(self, root: SourceSection) -> None:
        general, router, library = (
            root.section(name) for name in ("general_settings", "router_settings", "litellm_settings")
        )
        self._concurrency(root, general, router)
        self._router(router, library)
        self._general(general)
        self._access(general)
        self.accounts.read_budget(library)
        for section, messages in ((router, _ROUTER), (library, (*_ROUTER, *_LIBRARY)), (general, _GENERAL)):
            section.drop_all(messages)
        self._variables(root)
        root.drop("include", message="convert the included files as well")

    # Deployments

    def _concurrency(self, root: SourceSection, general: SourceSection, router: SourceSection) -> None:
        default = router.whole("default_max_parallel_requests") or general.whole("max_parallel_requests")
        deployments = root.sections("model_list")
        for each in deployments:
            self._deployment(each, default)
        self._aliases(router, [each.text("model_name") or "" for each in deployments])

    def _deployment(self, deployment: SourceSection, default_in_flight: int | None) -> None:
        name, params = deployment.text("model_name"), deployment.section("litellm_params")
        info = deployment.section("model_info")
        full = params.text("model")
        if not name or not full:
            missing = "litellm_params.model" if name else "model_name"
            raise deployment.error(missing, "missing; set it, or remove the deployment")
        place = (deployment.line(), f"{deployment.setting()} ({name})")
        if "*" in name or "*" in full:
            self.draft.file.drop(*place, "Headgate has no wildcards; list each model")
            return
        provider, served = _split(full, params.text("custom_llm_provider"))
        engine = _ENGINES.get(provider)
        if engine is None:
            reason = f'the provider "{provider}" does not have the OpenAI API; keep LiteLLM for it'
            self.draft.file.drop(*place, reason)
            params.skip()
            info.skip()
            return
        base = self._base(params, provider)
        if base is None:
            params.skip()
            info.skip()
            return
        model = self.draft.model_name(name, place)
        pool = PoolDraft(
            model,
            self.engine or engine if engine == _COMPATIBLE else engine,
            served,
            self._api_key(params, model),
            prices=_prices(params, info),
        )
        limit = params.whole("max_parallel_requests") or default_in_flight
        params.drop_all(_DEPLOYMENT)
        info.drop("max_input_tokens", "max_tokens", message="engines know their limits; see classes.NAME.caps")
        # The other fields describe the deployment to people and to LiteLLM's price list.
        for descriptive in ("id", "mode", "base_model", "description"):
            info.take(descriptive)
        self.draft.add_endpoint(model, base, pool, place, in_flight_max=limit)

    def _base(self, params: SourceSection, provider: str) -> str | None:
        name = "api_base" if "api_base" in params else "base_url"
        base = params.text(name)
        if base is None:
            if provider == "openai":
                return _OPENAI_API
            self.draft.file.drop(params.line(), params.setting("api_base"), "missing; set the URL of the engine")
            return None
        if not base.startswith(_ENVIRONMENT):
            return base
        variable = base.removeprefix(_ENVIRONMENT)
        if variable not in self.environ:
            params.take(name)
            problem = f"read from the environment variable {variable}, which is not set; export it and convert again"
            self.draft.file.drop(params.line(name), params.setting(name), problem)
            return None
        params.change(name, f"its value is the present value of the environment variable {variable}")
        return self.environ[variable]

    def _api_key(self, params: SourceSection, model: str) -> str | None:
        key = params.text("api_key")
        meaning = f"API key of the engines for {model}"
        if key is None:
            return None
        if key.startswith(_ENVIRONMENT):
            variable = self.draft.variable(key.removeprefix(_ENVIRONMENT), meaning)
            if variable is None:
                raise params.error("api_key", "does not name an environment variable; correct it")
            return variable
        variable = self.draft.secret(key, f"{model}_API_KEY", meaning)
        if variable is not None:
            params.change("api_key", f"secrets are not copied; set the environment variable {variable}")
        return variable

    def _aliases(self, router: SourceSection, names: list[str]) -> None:
        """Models with several names share their pools."""
        aliases = router.section("model_group_alias")
        for alias in aliases.names():
            target = aliases.take(alias)
            if isinstance(target, dict):
                target = target.get("model")
            place = (aliases.line(alias), aliases.setting(alias))
            if (
                not isinstance(target, str)
                or target not in names
                or not self.draft.add_alias(self.draft.model_name(alias, place), self.draft.model_name(target, place))
            ):
                self.draft.file.drop(*place, "its model is not carried over")

    # Other settings

    def _router(self, router: SourceSection, library: SourceSection) -> None:
        draft = self.draft
        for section in (router, library):
            if (retries := section.whole("num_retries")) is not None:
                place = section.line("num_retries"), section.setting("num_retries")
                comment = f"From {place[1]} (line {place[0]}): the first attempt and {retries} retries."
                draft.put_number(("retry", "attempts_max"), retries + 1, place, comment)
            for name, setting in (
                ("timeout", "attempt_timeout"),
                ("request_timeout", "attempt_timeout"),
                ("stream_timeout", "first_token_timeout"),
            ):
                if (value := section.seconds(name)) is not None:
                    draft.put_timeout(setting, value, (section.line(name), section.setting(name)))
            if (fails := section.whole("allowed_fails")) is not None:
                place = section.line("allowed_fails"), section.setting("allowed_fails")
                comment = f"From {place[1]} (line {place[0]}), which counts failures per minute."
                draft.put_number(("health", "consecutive_failures_max"), max(fails, 1), place, comment)
            if (cooldown := section.seconds("cooldown_time")) is not None:
                draft.put_ejection_time(cooldown, (section.line("cooldown_time"), section.setting("cooldown_time")))
            self._fallbacks(section)
        if (strategy := router.text("routing_strategy")) is not None:
            router.change(
                "routing_strategy", f'"{strategy}" becomes routing by predicted time; see docs/reference/policy.md'
            )

    def _fallbacks(self, section: SourceSection) -> None:
        for each in section.sections("fallbacks"):
            for name in each.names():
                self._add_fallbacks(name, each.texts(name), (each.line(name), each.setting(name)))
        common = section.texts("default_fallbacks")
        place = section.line("default_fallbacks"), section.setting("default_fallbacks")
        for model in self.draft.models() if common else ():
            self._add_fallbacks(model, common, place)

    def _add_fallbacks(self, name: str, fallbacks: list[str], place: tuple[int | None, str]) -> None:
        known = self.draft.models()
        for fallback in (name, *fallbacks):
            if self.draft.model_name(fallback, place) not in known:
                self.draft.file.drop(*place, f'the model "{fallback}" is not carried over')
        found = [valid for each in fallbacks if (valid := self.draft.model_name(each, place)) in known]
        self.draft.fallbacks.setdefault(self.draft.model_name(name, place), []).extend(found)

    def _general(self, general: SourceSection) -> None:
        if (size := general.number("max_request_size_mb")) is not None:
            place = general.line("max_request_size_mb"), general.setting("max_request_size_mb")
            self.draft.put_body_size(int(size * 2**20), place)
        if (parallel := general.whole("global_max_parallel_requests")) is not None:
            name = "global_max_parallel_requests"
            place = general.line(name), general.setting(name)
            comment = f"From {place[1]} (line {place[0]}). Queued requests count as well."
            self.draft.put_number(("limits", "requests_open_max"), parallel, place, comment)
            if parallel > 25_000:
                self.draft.put(("limits", "connections_open_max"), str(parallel))

    def _access(self, general: SourceSection) -> None:
        key = general.text("master_key")
        place = general.line("master_key"), general.setting("master_key")
        if key is None:
            return
        self.draft.key_reason = f"{place[1]} is set (line {place[0]})"
        if key.startswith(_ENVIRONMENT):
            key = self.environ.get(key.removeprefix(_ENVIRONMENT))
        self.accounts.add_tenant_with_key("master", key, place)

    def _variables(self, root: SourceSection) -> None:
        variables = root.section("environment_variables")
        for name in variables.names():
            variables.drop(name, message="secrets are not copied; export the variable if the gateway needs it")


def _split(full: str, provider: str | None) -> tuple[str, str]:
    """Provider, and the engine's name for the model."""
    prefix, slash, rest = full.partition("/")
    if provider is not None:
        return provider, rest if slash and prefix == provider else full
    if slash and rest and (prefix in _ENGINES or prefix in _TRANSLATED):
        return prefix, rest
    return "openai", full


def _prices(params: SourceSection, info: SourceSection) -> tuple[tuple[str, str], ...]:
    found: dict[str, Decimal] = {}
    for section in (params, info):
        for source, setting in (
            ("input_cost_per_token", "input_per_1m_tokens"),
            ("cache_read_input_token_cost", "cached_per_1m_tokens"),
            ("output_cost_per_token", "output_per_1m_tokens"),
        ):
            if (price := section.number(source)) is not None:
                found.setdefault(setting, price * 1_000_000)
    if not any(found.values()):
        return ()
    # LiteLLM counts a missing price as zero.
    found = {"input_per_1m_tokens": Decimal(), "output_per_1m_tokens": Decimal()} | found
    quantum = Decimal(1) / NANO_USD_PER_USD
    return tuple(
        (name, f"{min(price, Decimal(10**8)).quantize(quantum).normalize():f}") for name, price in found.items()
    )
