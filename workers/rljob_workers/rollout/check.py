"""`rljob-rollout --check`: is the model there, can it be trained, does every prompt fit? Starts nothing."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_api import errors, process_config, types
from rljob_api.manifest.data import DataSourceSpec
from rljob_api.manifest.job import JobSpec
from rljob_workers.data import left_out, records
from rljob_workers.models import builtin, families
from rljob_workers.rollout import app, examples, filters, group
from rljob_workers.rollout.episodes import protocols
from rljob_workers.runtime import clock


def findings(config: process_config.RolloutConfig, sources: Path | None) -> left_out.Findings:
    """Return one sentence per problem, and one per source that leaves out records; one about a record names file and
    line. `sources`: the coordinator's config.
    """
    spec, longest = config.spec, config.spec.rollout.engine.max_model_len
    listings, warnings = None, list[str]()
    try:
        try:
            listings = asyncio.run(app.listings_of(config, clock.SystemClock(), wait_s=0.0))
        except errors.UnavailableError as error:
            # A server of the cluster cannot be reached from here, and one that starts with the job is not there yet.
            warnings = [f"{error}; it was asked from this machine, and each rollout waits for it when it starts"]
        model = builtin.ensure_model(config.model)
        families.check(config.model.name, model, longest=longest, shows=spec.data.has_pictures)
        with _without_torch() if _is_all_ours(config) else contextlib.nullcontext():
            tokens = app.load_tokenizer(config, model)
        attempts = app.attempts_of(config, clock.SystemClock())
        places = app.places_of(config, clock.SystemClock())
        app.flow_of(config, spec.data.template, tokens, attempts, places, listings)
        suites = app.flows_of_suites(config, tokens, attempts, places, listings)
        filters.load_predicate(spec.data.filter_groups.predicate or "", file=config.user_code)
    except errors.ManifestError as error:
        return left_out.Findings(problems=list(error.problems), warnings=warnings)
    if sources is None:
        return left_out.Findings(warnings=warnings)
    coordinator = process_config.CoordinatorConfig.model_validate_json(sources.read_bytes())
    here = records.on_this_machine(coordinator.spec, Path(coordinator.cache_dir))
    return left_out.joined(
        [
            left_out.Findings(warnings=warnings),
            *(
                _of_source(source, max_tokens, longest, tokens_of_it)
                for source, max_tokens, tokens_of_it in _sources(here, tokens, suites)
            ),
            *(_of_examples(source, coordinator.sampling, tokens) for source in here.data.example_sources),
        ]
    )


# A name of code that is not ours: module:function, plugin:name.
_CODE = re.compile(r'"[\w.]+:\w+"')


def _is_all_ours(config: process_config.RolloutConfig) -> bool:
    """Return whether no code of the user, of a plugin or of the model's folder is imported by the checks."""
    named = config.spec.model_dump_json(include={"data", "evaluation", "rollout", "workflow"})
    return not (config.spec.model.trust_remote_code or _CODE.search(named))


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Import transformers as where torch is not installed: a tokenizer needs none of the seconds that it takes."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # documented: an import of it fails
    # It would say that models are not available.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    try:
        yield
    finally:
        del sys.modules["torch"]


def _sources(
    spec: JobSpec, tokens: protocols.Tokens, suites: Mapping[str, group.Flow]
) -> Iterator[tuple[DataSourceSpec, int, protocols.Tokens]]:
    for source in spec.data.prompt_sources:
        yield source, spec.rollout.sampling.max_tokens, tokens
    for suite in spec.evaluation.suites:
        own = suites[suite.name].tokens if suite.name in suites else tokens
        yield suite, spec.evaluation.sampling.max_tokens, own


def _of_examples(source: DataSourceSpec, sampling: types.Sampling, tokens: examples.ExampleTokens) -> left_out.Findings:
    loaded, _ = records.inspect_source(source)
    wrong: list[tuple[int, str]] = []
    too_long: list[tuple[int, str]] = []
    for index, record in enumerate(loaded.records):
        try:
            prompt, answer = tokens.example_ids(record, sampling)
        except errors.DataError as error:
            wrong.append((index, str(error)))
            continue
        why = filters.too_long(record, len(prompt), source) or examples.too_long(record, len(answer), sampling)
        if why:
            too_long.append((index, why))
    drops = source.on_invalid_record == "Drop"
    return left_out.joined(
        [left_out.judged(source, loaded, wrong, drops=drops), left_out.judged(source, loaded, too_long, drops=True)]
    )


def _of_source(
    source: DataSourceSpec, max_tokens: int, max_model_len: int, tokens: protocols.Tokens
) -> left_out.Findings:
    # Defects of a record that do not depend on the reader are reported by the coordinator's own check.
    loaded, _ = records.inspect_source(source)
    wrong: list[tuple[int, str]] = []
    too_long: list[tuple[int, str]] = []
    no_room: list[str] = []
    for index, record in enumerate(loaded.records):
        try:
            length = len(tokens.prompt_ids(record))
        except errors.DataError as error:
            wrong.append((index, str(error)))
            continue
        if length > source.max_prompt_tokens:
            too_long.append((index, filters.too_long_message(record, length, source.max_prompt_tokens)))
        elif length + max_tokens > max_model_len:
            no_room.append(
                f"{loaded.place(index)}: record '{record.prompt_id}' has {length} prompt tokens, which with"
                f" maxTokens {max_tokens} is more than spec.rollout.engine.maxModelLen {max_model_len};"
                " shorten it, lower maxTokens or raise maxModelLen"
            )
    drops = source.on_invalid_record == "Drop"
    unusable = (
        left_out.judged(source, loaded, wrong, drops=drops),
        left_out.judged(source, loaded, too_long, drops=True),
    )
    return left_out.joined([*unusable, left_out.Findings(problems=no_room)])
