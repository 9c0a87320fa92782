"""Row 23 and the engine's context: what may be sampled."""

from collections.abc import Iterator, Sequence

from rljob_api import effective
from rljob_api.manifest.base import number
from rljob_api.manifest.evaluation import EvaluationSamplingSpec
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.rollout import SamplingSpec
from rljob_api.messages import ignored, refuse

SAMPLING = "rollout.sampling"
# Templates that bring their own stop rule (workflows, 8.2). A bare question has none and keeps what is written.
OWN_STOPS = {"qwen_math": "which stops at the end token only", "r1": "which stops at </answer>"}


def training_distribution(spec: JobSpec) -> Iterator[str]:
    """Row 23. Penalties are no fields at all."""
    sampling = spec.rollout.sampling
    exact = "training needs log-probabilities of the distribution that was sampled"
    if number(sampling.temperature) <= 0:
        yield refuse(
            f"{SAMPLING}.temperature", sampling.temperature, f'{exact}: use a temperature above 0, such as "1.0"'
        )
    if number(sampling.top_p) != 1:
        yield refuse(f"{SAMPLING}.topP", sampling.top_p, f'{exact}: use "1"')
    if effective.top_k(sampling.top_k) != 0:
        yield refuse(f"{SAMPLING}.topK", sampling.top_k, f"{exact}: use 0")
    if number(sampling.min_p) != 0:
        yield refuse(f"{SAMPLING}.minP", sampling.min_p, f'{exact}: use "0"')
    if sampling.min_tokens > sampling.max_tokens:
        yield refuse(f"{SAMPLING}.minTokens", sampling.min_tokens, f"it is above maxTokens {sampling.max_tokens}")


def requests_fit_the_engine(spec: JobSpec) -> Iterator[str]:
    """The longest prompt and answer fit the context of the engine."""
    length = spec.rollout.engine.max_model_len
    if length is None:
        return
    longest = effective.longest_prompt(spec)
    if effective.longest_row(spec) > length:
        yield refuse(
            "rollout.engine.maxModelLen",
            length,
            f"data.train maxPromptTokens {longest} + rollout.sampling.maxTokens {spec.rollout.sampling.max_tokens}"
            f" = {effective.longest_row(spec)} tokens must fit: raise maxModelLen, or lower one of them",
        )
    answer = effective.evaluation_max_tokens(spec)
    for index, suite in enumerate(spec.evaluation.suites):
        if suite.max_prompt_tokens + answer > length:
            yield refuse(
                f"evaluation.suites[{index}].maxPromptTokens",
                suite.max_prompt_tokens,
                f"with {answer} answer tokens it does not fit rollout.engine.maxModelLen {length}",
            )


def stops_that_the_template_replaces(spec: JobSpec) -> Iterator[str]:
    """A template with its own stop rule would ignore stops that were written."""
    asked = [("data.template", spec.data.template)]
    yield from _replaced(SAMPLING, asked, spec.rollout.sampling)
    suites_asked = [
        (f"evaluation.suites[{index}].template", suite.template) if suite.template else asked[0]
        for index, suite in enumerate(spec.evaluation.suites)
    ]
    yield from _replaced("evaluation.sampling", suites_asked or asked, spec.evaluation.sampling)


def _replaced(
    path: str, templates: Sequence[tuple[str, str]], sampling: SamplingSpec | EvaluationSamplingSpec
) -> Iterator[str]:
    """Refuse stops that every one of these templates ignores."""
    if any(template not in OWN_STOPS for _, template in templates):
        return
    place, template = templates[0]
    for key, value in (("stop", sampling.stop), ("stopTokenIds", sampling.stop_token_ids)):
        if value:
            yield ignored(f"{path}.{key}", list(value), f"{place} is '{template}', {OWN_STOPS[template]}")
