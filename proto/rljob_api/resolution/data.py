"""Data sources, sampling and evaluation of the coordinator's config."""

import posixpath

from rljob_api import roles
from rljob_api.manifest.data import DataSourceSpec, TrainSourceSpec
from rljob_api.manifest.job import JobSpec


def data_config(spec: JobSpec, base_dir: str) -> roles.DataConfig:
    """Return the training sources; relative paths are below `base_dir`."""
    return roles.DataConfig(
        train=tuple(_source(source, base_dir) for source in spec.data.train),
        template=spec.data.template,
        shuffle=spec.data.shuffle,
        epochs=spec.data.epochs or 0,
        curriculum=spec.data.curriculum,
    )


def _source(source: DataSourceSpec, base_dir: str) -> roles.DataSourceConfig:
    gym = source.reasoning_gym
    return roles.DataSourceConfig(
        name=source.name,
        weight=source.weight if isinstance(source, TrainSourceSpec) else 1.0,
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


def evaluation_config(spec: JobSpec, base_dir: str) -> roles.EvaluationConfig:
    """Return the suites and their sampling."""
    evaluation = spec.evaluation
    return roles.EvaluationConfig(
        every_steps=evaluation.every_steps,
        before_training=evaluation.before_training,
        suites=tuple(
            roles.EvaluationSuite(source=_source(suite, base_dir), samples_per_prompt=evaluation.samples_per_prompt)
            for suite in evaluation.suites
        ),
        sampling=evaluation.sampling.request(spec.data.template),
        rollout_fraction=evaluation.rollout_fraction,
        sampling_by_suite={
            suite.name: evaluation.sampling.request(suite.template) for suite in evaluation.suites if suite.template
        },
    )
