"""Which of the forms of workflow reference 2 a user's class has, and whether its methods fit. Pure but for reading
the class's source lines.
"""

import enum
import inspect
from collections.abc import Callable, Iterator

from rljob_api import errors


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
_BY_POSITION = {"agent_input", "action"}


def form_of(found: object, *, reference: str, field: str) -> Form:
    """Return the form of a class. Raises ManifestError with every problem, each with file and line."""
    if not inspect.isclass(found):
        raise errors.ManifestError(f"{field} is '{reference}', which is {type(found).__name__} and not a class")
    form = _recognise(found)
    if form is None:
        raise errors.ManifestError(
            f"{_place(found)}: class {found.__name__} has neither arun_episode(llm_client, gconfig, task, grader, seed)"
            " nor aact nor reset and step nor run(data, base_url, http_client, api_key), so it is no workflow"
            f" ({field})"
        )
    problems = [problem for name, wanted in METHODS[form].items() for problem in _problems(found, form, name, wanted)]
    if problems:
        raise errors.ManifestError(*problems)
    return form


def _recognise(found: type) -> Form | None:
    if hasattr(found, "arun_episode"):
        return Form.WORKFLOW if "engine" in inspect.signature(found.arun_episode).parameters else Form.COLLECTOR
    if hasattr(found, "aact"):
        return Form.AGENT
    if hasattr(found, "reset") and hasattr(found, "step"):
        return Form.ENVIRONMENT if inspect.iscoroutinefunction(found.step) else Form.GYM
    if hasattr(found, "run"):
        return Form.OPENAI
    return None


def _problems(found: type, form: Form, name: str, wanted: tuple[str, ...]) -> Iterator[str]:
    method = getattr(found, name, None)
    if not callable(method):
        yield f"{_place(found)}: class {found.__name__} is an {form}, but has no method {name}"
        return
    place = f"{_place(method)}: {found.__name__}.{name}"
    if form is not Form.GYM and not inspect.iscoroutinefunction(method):
        yield f"{place} must be an async function"
    taken = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return
    named = [key for key in wanted if key not in _BY_POSITION and key not in taken]
    if named:
        yield f"{place} must take {', '.join(named)} by name"
    if _BY_POSITION & set(wanted) and len(taken) != 1 + len(wanted):
        yield f"{place} must take one argument besides self, {wanted[0]}"


def _place(found: Callable[..., object]) -> str:
    try:
        return f"{inspect.getsourcefile(found)}:{inspect.getsourcelines(found)[1]}"
    except (OSError, TypeError):
        return str(getattr(found, "__module__", "?"))
