"""`workflow.type` to a collector, by a table of option models that refuse unknown names and keys."""

from collections.abc import Mapping

import pydantic

from rljob_api import errors
from rljob_workers.rollout.episodes import (
    custom,
    legacy_turns,
    multi_turn,
    protocols,
    rlvr,
    shell_tool,
    single_step,
    tool_use,
)
from rljob_workers.rollout.episodes import options as options_module
from rljob_workers.rollout.gateway import episode_calls, external, sessions
from rljob_workers.rollout.tool_servers import sessions as tool_sessions


class RlvrConfig(pydantic.BaseModel):
    """`workflow.config` of rlvr: it has no options."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class ExternalConfig(pydantic.BaseModel):
    """`workflow.config` of external."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    proxy: episode_calls.ProxyConfig = episode_calls.ProxyConfig()


_MODELS: Mapping[str, type[pydantic.BaseModel]] = {
    "rlvr": RlvrConfig,
    "math_code_single_step": single_step.SingleStepConfig,
    "multi_turn_math": multi_turn.MultiTurnConfig,
    "tool_use": tool_use.ToolUseConfig,
    "external": ExternalConfig,
}
KNOWN = tuple(_MODELS)


def options_of(workflow: str, config: Mapping[str, object]) -> pydantic.BaseModel:
    """Raises ManifestError for an unknown one and for each wrong option."""
    if workflow not in KNOWN:
        raise errors.ManifestError(
            f"spec.workflow.type is '{workflow}', but must be one of {', '.join(KNOWN)}, module:Class or plugin:<name>"
        )
    legacy = workflow == "multi_turn_math" and config.get("layout") == "legacy"
    model = legacy_turns.LegacyConfig if legacy else _MODELS[workflow]
    return options_module.validated(model, dict(config), "spec.workflow.config", owner=f"workflow '{workflow}'")


def make_collector(
    *,
    workflow: str,
    config: Mapping[str, object],
    tokens: protocols.Tokens,
    template: str,
    max_model_len: int,
    code: str = "",
    attempts: sessions.Sessions | None = None,
    places: shell_tool.Places | None = None,
    listings: tool_sessions.Listings | None = None,
) -> protocols.RolloutCollector:
    """Return the collector of `workflow`, which may be module:Class or plugin:<name>; `code` is the user's file;
    `attempts`: where agents outside take theirs, for workflow external; `places`: with a shell, for tool_use and
    classes that take them; `listings`: of tools of servers, for tool_use, None where no server was asked.

    Raises ManifestError that names the field, its value and what there is.
    """
    if ":" in workflow:
        return custom.make_collector(
            workflow,
            file=code,
            config=config,
            tokens=tokens,
            template=template,
            max_model_len=max_model_len,
            places=places,
        )
    options = options_of(workflow, config)
    if isinstance(options, legacy_turns.LegacyConfig):
        return legacy_turns.LegacyCollector(options, tokens=tokens, template=template, max_model_len=max_model_len)
    if isinstance(options, multi_turn.MultiTurnConfig):
        return multi_turn.MultiTurnCollector(options, tokens=tokens, template=template, max_model_len=max_model_len)
    if isinstance(options, tool_use.ToolUseConfig):
        offer = None
        if listings is not None:
            offer = tool_sessions.Offer.of(listings, has_shell=places is not None, tokens=tokens)
        return tool_use.ToolUseCollector(
            options, tokens=tokens, template=template, max_model_len=max_model_len, places=places, offer=offer
        )
    if isinstance(options, ExternalConfig):
        assert attempts is not None, "a manifest with workflow external has a gateway"
        return external.ExternalCollector(
            open_sessions=attempts, config=options.proxy, tokens=tokens, template=template, max_model_len=max_model_len
        )
    if isinstance(options, single_step.SingleStepConfig):
        return single_step.make_collector(options, tokens=tokens, template=template, max_model_len=max_model_len)
    return rlvr.RlvrCollector(tokens=tokens, template=template, max_model_len=max_model_len)
