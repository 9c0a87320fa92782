"""Data sources, sampling and evaluation of the coordinator's config."""

import posixpath

from rljob_api import effective, roles
from rljob_api.manifest.base import number
from rljob_api.manifest.data import CurriculumSpec, DataSourceSpec, TrainSourceSpec
from rljob_api.manifest.job import JobSpec


def data_config(spec: JobSpec, base_dir: str) -> roles.DataConfig:
    """Return the training sources; relative paths are below `base_dir`."""
    return roles.DataConfig(
        train=tuple(_source(source, base_dir) for source in spec.data.train),
        template=spec.data.template,
        shuffle=spec.data.shuffle,
        epochs=spec.data.epochs or 0,
        curriculum=_curriculum(spec.data.curriculum),
    )


def _curriculum(spec: CurriculumSpec | None) -> roles.CurriculumConfig | None:
    if spec is None:
        return None
    return roles.CurriculumConfig(
        threshold=number(spec.filter_threshold), max_fraction=number(spec.max_filter_percentage)
    )


def _source(source: DataSourceSpec, base_dir: str) -> roles.DataSourceConfig:
    gym = source.reasoning_gym
    return roles.DataSourceConfig(
        name=source.name,
        weight=number(source.weight) if isinstance(source, TrainSourceSpec) else 1.0,
        path="" if source.path is None else posixpath.normpath(posixpath.join(base_dir, source.path)),
        hub=source.hub or "",
        split=source.split,
        reasoning_gym="" if gym is None else gym.name,
        reasoning_gym_config={} if gym is None else dict(gym.config),
        size=0 if gym is None else gym.size,
        columns=roles.ColumnsConfig(
            prompt=source.columns.prompt, answer=source.columns.answer, id=source.columns.id or ""
        ),
        format=source.format,
        max_prompt_tokens=source.max_prompt_tokens,
        on_invalid_record=source.on_invalid_record,
    )


def sampling_config(spec: JobSpec) -> roles.SamplingConfig:
    """Return how training answers are sampled. Template r1 stops at its closing tag and keeps it (workflows, 8.2)."""
    sampling = spec.rollout.sampling
    return _stopping(
        spec.data.template,
        roles.SamplingConfig(
            temperature=number(sampling.temperature),
            top_p=number(sampling.top_p),
            top_k=effective.top_k(sampling.top_k),
            min_p=number(sampling.min_p),
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
        ),
    )


def evaluation_config(spec: JobSpec, base_dir: str) -> roles.EvaluationConfig:
    """Return the suites and their sampling: greedy, otherwise what training has where nothing is written."""
    evaluation = spec.evaluation
    return roles.EvaluationConfig(
        every_steps=evaluation.every_steps,
        before_training=evaluation.before_training,
        suites=tuple(
            roles.EvaluationSuite(source=_source(suite, base_dir), samples_per_prompt=evaluation.samples_per_prompt)
            for suite in evaluation.suites
        ),
        sampling=_evaluation_sampling(spec, spec.data.template),
        rollout_fraction=number(evaluation.rollout_fraction),
        sampling_by_suite={
            suite.name: _evaluation_sampling(spec, suite.template) for suite in evaluation.suites if suite.template
        },
    )


def _evaluation_sampling(spec: JobSpec, template: str) -> roles.SamplingConfig:
    own, training = spec.evaluation.sampling, spec.rollout.sampling
    temperature = number(own.temperature)
    return _stopping(
        template,
        roles.SamplingConfig(
            temperature=temperature,
            top_p=number(own.top_p),
            top_k=effective.top_k(own.top_k),
            min_p=number(own.min_p),
            max_tokens=effective.evaluation_max_tokens(spec),
            min_tokens=training.min_tokens if own.min_tokens is None else own.min_tokens,
            stop=training.stop if own.stop is None else own.stop,
            stop_token_ids=training.stop_token_ids if own.stop_token_ids is None else own.stop_token_ids,
            ignore_eos=training.ignore_eos if own.ignore_eos is None else own.ignore_eos,
            greedy=temperature == 0.0,
        ),
    )


def _stopping(template: str, sampling: roles.SamplingConfig) -> roles.SamplingConfig:
    if template != "r1":
        return sampling
    return sampling.model_copy(update={"stop": ("</answer>",), "include_stop": True})
