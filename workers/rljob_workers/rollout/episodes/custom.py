"""From a user's class to a collector, in any `Form`: `workflow.type: module:Class`, or `plugin:<name>`, a class that an
installed package declares as an entry point in group `rljob.environments`.
"""

import enum
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import pydantic

from rljob_api import errors, plugins
from rljob_workers.rollout.episodes import agent, protocols, shell_tool, single_step, workflow
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
PLACES = "places"
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


# The option in `workflow.config` that is not the class's own.
_OPTION_OF_OURS = {Form.ENVIRONMENT: AGENT, Form.GYM: AGENT, Form.AGENT: AGENT, Form.OPENAI: PROXY}


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


def check(reference: str, *, file: str, config: Mapping[str, object], has_environment: bool) -> None:
    """Import what a manifest names, look at its form, and whether it and the job agree on environments. Raises
    ManifestError with file and line.
    """
    make, form = _class(reference, file=file, field=TYPE_FIELD)
    _check_places(make, form, _agent_class(form, config, file=file), has_environment=has_environment)


def _check_places(make: Make, form: Form, agent_class: Make | None, *, has_environment: bool) -> None:
    """Raises ManifestError for places that a class needs and the job has not, or that no class takes."""
    taken = {each: _parameter(each, PLACES) for each in (make, agent_class) if each is not None}
    if form is Form.GYM and taken[make] is not None:
        raise errors.ManifestError(
            f"{_place(make)}: {make.__name__} takes {PLACES}, whose calls are async, but its methods are not: write"
            " async reset, step and aclose"
        )
    for each, parameter in taken.items():
        if parameter is not None and parameter.default is parameter.empty and not has_environment:
            raise errors.ManifestError(
                f"{_place(each)}: {each.__name__} takes {PLACES}, but spec.environment is not set: write"
                " environment: {}"
            )
    if has_environment and not any(taken.values()):
        raise errors.ManifestError(
            f"spec.environment is set, but has no effect: {_place(make)}: {make.__name__}.__init__ takes no {PLACES}"
        )


def _parameter(make: Make, name: str) -> inspect.Parameter | None:
    """Return what a class's `__init__` takes by that name."""
    return inspect.signature(make).parameters.get(name)


def _lent(make: Make, places: shell_tool.Places | None) -> Make:
    """Return what makes a class with the job's environments, if it takes them by name."""
    if places is None or _parameter(make, PLACES) is None:
        return make
    return functools.partial(make, **{PLACES: places})


def make_collector(
    reference: str,
    *,
    file: str,
    config: Mapping[str, object],
    tokens: protocols.Tokens,
    template: str,
    max_model_len: int,
    places: shell_tool.Places | None = None,
) -> protocols.RolloutCollector:
    """Return the collector of a user's class. Raises ManifestError with field, or file and line, and remedy.

    A collector runs as it is; an agent acts in the environment of math_code_single_step; an environment is acted in by
    `config.agent`, else by the built-in text agent. Classes are made with their config alone; one whose `__init__`
    takes `places` by name also gets the job's environments, and an environment that takes `grader` the way to the
    verifiers.
    """
    loaded, form = _class(reference, file=file, field=TYPE_FIELD)
    agent_class = _agent_class(form, config, file=file)
    _check_places(loaded, form, agent_class, has_environment=places is not None)
    own = {key: value for key, value in config.items() if key != _OPTION_OF_OURS.get(form)}
    make, options = _lent(loaded, places), _options(loaded, own)
    if form is Form.COLLECTOR:
        collector: protocols.RolloutCollector = make(options)  # type: ignore[assignment]  # by its form
        return collector
    if form is Form.WORKFLOW:
        return workflow.WorkflowCollector(
            cast("workflow.Workflow", make(options)), tokens=tokens, template=template, max_model_len=max_model_len
        )
    if form is Form.OPENAI:
        return _behind_proxy(
            lambda: make(options), config, tokens=tokens, template=template, max_model_len=max_model_len
        )
    if form is Form.AGENT:
        return _loop(lambda: make(options), lambda grader: _math(grader), max_model_len)
    environment = _environment(make, options, form)
    if agent_class is not None:
        make_agent = _lent(agent_class, places)
        return _loop(lambda: make_agent({}), environment, max_model_len)
    return _loop(lambda: text_agent.TextAgent(tokens=tokens, template=template), environment, max_model_len)


def _environment(make: Make, options: object, form: Form) -> MakeEnvironment:
    """Return what makes one environment per episode; a synchronous one cannot wait for a verifier, so it gets none."""
    if form is Form.GYM:
        return lambda _: agent.as_async(make(options))
    if _parameter(make, GRADER) is not None:
        return lambda grader: cast("AnyEnvironment", make(options, **{GRADER: grader}))
    return lambda _: cast("AnyEnvironment", make(options))


def _behind_proxy(
    make_agent: Callable[[], object],
    config: Mapping[str, object],
    *,
    tokens: protocols.Tokens,
    template: str,
    max_model_len: int,
) -> protocols.RolloutCollector:
    # An HTTP server and client, which no other form needs.
    from rljob_workers.rollout.gateway import collector, episode_calls

    proxy = options_module.validated(episode_calls.ProxyConfig, config.get(PROXY, {}), PROXY_FIELD)
    return collector.ProxyCollector(
        make_agent=lambda: cast("collector.OpenAIAgent", make_agent()),
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


def _agent_class(form: Form, config: Mapping[str, object], *, file: str) -> Make | None:
    """Return the class that acts in a user's environment, None where there is none. Raises ManifestError."""
    if AGENT not in config or _OPTION_OF_OURS.get(form) != AGENT:
        return None
    reference = config[AGENT]
    if form is Form.AGENT:
        raise errors.ManifestError(f"{AGENT_FIELD} belongs to an environment, but spec.workflow.type names an agent")
    if not isinstance(reference, str) or ":" not in reference:
        raise errors.ManifestError(f"{AGENT_FIELD} is {reference!r}, but must be module:Class or plugin:<name>")
    make, own_form = _class(reference, file=file, field=AGENT_FIELD)
    if own_form is not Form.AGENT:
        raise errors.ManifestError(f"{AGENT_FIELD} is '{reference}', which is an {own_form} and not an Agent")
    return make


def _options(make: Make, config: Mapping[str, object]) -> object:
    """Return the config as the class's own pydantic model `Config`, if it has one, else as it was written."""
    model = getattr(make, "Config", None)
    if not (isinstance(model, type) and issubclass(model, pydantic.BaseModel)):
        return dict(config)
    return options_module.validated(model, dict(config), "spec.workflow.config")
