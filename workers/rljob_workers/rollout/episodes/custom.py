"""From a user's class to a collector, in any `Form`: `workflow.type: module:Class`, or `plugin:<name>`, a class that an
installed package declares as an entry point in group `rljob.environments`.
"""

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import pydantic

from rljob_api import errors, plugins
from rljob_workers.rollout.episodes import agent, protocols, single_step, workflow
from rljob_workers.rollout.episodes import agent as text_agent
from rljob_workers.rollout.episodes import options as options_module
from rljob_workers.runtime import user_code

_BY_POSITION = {"agent_input", "action"}
TYPE_FIELD = "spec.workflow.type"
AGENT = "agent"
AGENT_FIELD = f"spec.workflow.config.{AGENT}"
PROXY = "proxy"
PROXY_FIELD = f"spec.workflow.config.{PROXY}"
GRADER = "grader"
Make = Callable[..., object]
AnyAgent = protocols.Agent[object, object]
AnyEnvironment = protocols.Environment[object, object]
MakeEnvironment = Callable[[protocols.Grader], AnyEnvironment]


class Form(enum.StrEnum):
    """What a class is, by its methods."""

    COLLECTOR = "RolloutCollector"
    AGENT = "Agent"
    ENVIRONMENT = "Environment"
    GYM = "gymnasium Env"
    OPENAI = "agent of the OpenAI API"
    WORKFLOW = "RolloutWorkflow"


METHODS: dict[Form, dict[str, tuple[str, ...]]] = {
    Form.COLLECTOR: {"arun_episode": ("llm_client", "gconfig", "task", "grader", "seed")},
    Form.AGENT: {"aact": ("agent_input",), "areset": ()},
    Form.ENVIRONMENT: {"reset": ("seed", "options"), "step": ("action",), "aclose": ()},
    Form.GYM: {"reset": ("seed", "options"), "step": ("action",)},
    Form.WORKFLOW: {"arun_episode": ("engine", "data")},
    Form.OPENAI: {"run": ("data", "base_url", "http_client", "api_key")},
}


def form_of(loaded: object, *, reference: str, field: str) -> Form:
    """Return the form of a class. Raises ManifestError with every problem, each with file and line."""
    if not inspect.isclass(loaded):
        raise errors.ManifestError(f"{field} is '{reference}', which is {type(loaded).__name__} and not a class")
    form = _recognise(loaded)
    if form is None:
        raise errors.ManifestError(
            f"{_place(loaded)}: class {loaded.__name__} is not a workflow ({field}): it needs arun_episode(llm_client,"
            " gconfig, task, grader, seed), or aact, or reset and step, or run(data, base_url, http_client, api_key)"
        )
    problems = [
        problem for name, parameters in METHODS[form].items() for problem in _problems(loaded, form, name, parameters)
    ]
    if problems:
        raise errors.ManifestError(*problems)
    return form


def _recognise(loaded: type) -> Form | None:
    if hasattr(loaded, "arun_episode"):
        return Form.WORKFLOW if "engine" in inspect.signature(loaded.arun_episode).parameters else Form.COLLECTOR
    if hasattr(loaded, "aact"):
        return Form.AGENT
    if hasattr(loaded, "reset") and hasattr(loaded, "step"):
        return Form.ENVIRONMENT if inspect.iscoroutinefunction(loaded.step) else Form.GYM
    if hasattr(loaded, "run"):
        return Form.OPENAI
    return None


def _problems(loaded: type, form: Form, name: str, parameters: tuple[str, ...]) -> Iterator[str]:
    method = getattr(loaded, name, None)
    if not callable(method):
        yield f"{_place(loaded)}: class {loaded.__name__} is an {form}, but has no method {name}"
        return
    place = f"{_place(method)}: {loaded.__name__}.{name}"
    if form is not Form.GYM and not inspect.iscoroutinefunction(method):
        yield f"{place} must be an async function"
    taken = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return
    named = [key for key in parameters if key not in _BY_POSITION and key not in taken]
    if named:
        yield f"{place} must take {', '.join(named)} by name"
    if _BY_POSITION & set(parameters) and len(taken) != 1 + len(parameters):
        yield f"{place} must take one argument besides self, {parameters[0]}"


def _place(loaded: Callable[..., object]) -> str:
    try:
        return f"{inspect.getsourcefile(loaded)}:{inspect.getsourcelines(loaded)[1]}"
    except (OSError, TypeError):
        return str(getattr(loaded, "__module__", "?"))


def check(reference: str, *, file: str, config: Mapping[str, object]) -> None:
    """Import what a manifest names and look at its form. Raises ManifestError with file and line."""
    _class(reference, file=file, field=TYPE_FIELD)
    if AGENT in config:
        _agent_class(config[AGENT], file=file)


def make_collector(
    reference: str,
    *,
    file: str,
    config: Mapping[str, object],
    tokens: protocols.Tokens,
    template: str,
    max_model_len: int,
) -> protocols.RolloutCollector:
    """Return the collector of a user's class. Raises ManifestError with field, or file and line, and remedy.

    A collector runs as it is; an agent acts in the environment of math_code_single_step; an environment is acted in by
    `config.agent`, else by the built-in text agent. Classes are made with their config alone; an environment whose
    `__init__` takes `grader` by name also gets the way to the verifiers.
    """
    make, form = _class(reference, file=file, field=TYPE_FIELD)
    if form is Form.COLLECTOR:
        collector: protocols.RolloutCollector = make(_options(make, config))  # type: ignore[assignment]  # by its form
        return collector
    if form is Form.WORKFLOW:
        return workflow.WorkflowCollector(
            cast("workflow.Workflow", make(_options(make, config))),
            tokens=tokens,
            template=template,
            max_model_len=max_model_len,
        )
    if form is Form.OPENAI:
        return _behind_proxy(make, config, tokens=tokens, template=template, max_model_len=max_model_len)
    own = {key: value for key, value in config.items() if key != AGENT}
    options = _options(make, own)
    if form is Form.AGENT:
        _refuse_agent(config)
        return _loop(lambda: make(options), lambda grader: _math(grader), max_model_len)
    environment = _environment(make, options, form)
    if AGENT in config:
        agent = _agent_class(config[AGENT], file=file)
        return _loop(lambda: agent({}), environment, max_model_len)
    return _loop(lambda: text_agent.TextAgent(tokens=tokens, template=template), environment, max_model_len)


def _environment(make: Make, options: object, form: Form) -> MakeEnvironment:
    """Return what makes one environment per episode; a synchronous one cannot wait for a verifier, so it gets none."""
    if form is Form.GYM:
        return lambda _: agent.as_async(make(options))
    if GRADER in inspect.signature(make).parameters:
        return lambda grader: cast("AnyEnvironment", make(options, **{GRADER: grader}))
    return lambda _: cast("AnyEnvironment", make(options))


def _behind_proxy(
    make: Make, config: Mapping[str, object], *, tokens: protocols.Tokens, template: str, max_model_len: int
) -> protocols.RolloutCollector:
    # An HTTP server and client, which no other form needs.
    from rljob_workers.rollout.gateway import collector, episode_calls

    own = {key: value for key, value in config.items() if key != PROXY}
    options = _options(make, own)
    proxy = options_module.validated(episode_calls.ProxyConfig, config.get(PROXY, {}), PROXY_FIELD)
    return collector.ProxyCollector(
        make_agent=lambda: cast("collector.OpenAIAgent", make(options)),
        config=proxy,
        tokens=tokens,
        template=template,
        max_model_len=max_model_len,
    )


def _loop(
    make_agent: Callable[[], object],
    make_environment: MakeEnvironment,
    max_model_len: int,
) -> protocols.RolloutCollector:
    return agent.AgentCollector(
        # What an agent reads and an environment takes is the user's affair; the loop only carries it.
        make_agent=lambda: cast("AnyAgent", make_agent()),
        make_environment=make_environment,
        max_model_len=max_model_len,
    )


def _math(grader: protocols.Grader) -> AnyEnvironment:
    return cast("AnyEnvironment", single_step.MathCodeEnvironment(grader=grader))


def _class(reference: str, *, file: str, field: str) -> tuple[Make, Form]:
    if plugins.plugin_name(reference):
        loaded = plugins.load(plugins.ENVIRONMENTS, reference, field=field)
    else:
        loaded = user_code.load(reference, file=file, field=field)
    form = form_of(loaded, reference=reference, field=field)
    return cast("Make", loaded), form


def _agent_class(reference: object, *, file: str) -> Make:
    if not isinstance(reference, str) or ":" not in reference:
        raise errors.ManifestError(f"{AGENT_FIELD} is {reference!r}, but must be module:Class or plugin:<name>")
    make, form = _class(reference, file=file, field=AGENT_FIELD)
    if form is not Form.AGENT:
        raise errors.ManifestError(f"{AGENT_FIELD} is '{reference}', which is an {form} and not an Agent")
    return make


def _refuse_agent(config: Mapping[str, object]) -> None:
    if AGENT in config:
        raise errors.ManifestError(f"{AGENT_FIELD} belongs to an environment, but spec.workflow.type names an agent")


def _options(make: Make, config: Mapping[str, object]) -> object:
    """Return the config as the class's own pydantic model `Config`, if it has one, else as it was written."""
    model = getattr(make, "Config", None)
    if not (isinstance(model, type) and issubclass(model, pydantic.BaseModel)):
        return dict(config)
    return options_module.validated(model, dict(config), "spec.workflow.config")
