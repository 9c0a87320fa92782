"""`reasoning_gym`: the dataset's own `score_answer`, for datasets whose scorer does not evaluate the policy's text.

The record carries the generator's `metadata`, whose `source_dataset` names the scorer, and `answer`; `dataset_config`
holds the generator's options where the scorer depends on them. What is scored is the text between the last answer
tags, or the whole completion if it has none. Options: `requireTags` (default false): no tags, no answer; `binary`
(default false): scores below 1 count 0; `datasets` (default none): names to load before the first answer.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

from rljob_api import enums, errors, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import spans

CONFIG = "dataset_config"
_OPEN, _CLOSE = "<answer>", "</answer>"
_MOST_DATASETS = 32
# Scorers that compare with tuples, which a record's JSON turned into lists: dataset -> keys of the metadata.
_TUPLES = {"arc_agi": ("output",), "rearc": ("output",)}


class Scorer(Protocol):
    """The part of a reasoning-gym dataset that grades."""

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Return a score, 1 for a right answer."""


class GymGrader(base.SingleTimeLimit):
    """Scores with the dataset that made the record."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError for an unknown option or a refused dataset."""
        self._options = base.options(reward_options.GymOptions, config)
        for name in self._options.datasets:
            self._check_name(config, name)
        self._scorers: dict[tuple[str, str], Scorer] = {}

    @staticmethod
    def _check_name(config: process_config.GraderConfig, name: str) -> None:
        try:
            gold.gym_dataset({gold.METADATA: {gold.SOURCE_DATASET: name}})
        except errors.DataError as error:
            raise errors.ManifestError(f"reward {config.name!r}: config.datasets: {error}") from error

    @property
    def needs_worker(self) -> bool:
        """Scorers are foreign code."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError if no scorer may or can grade this record."""
        gold.check_gold("reasoning_gym", columns)
        if not isinstance(columns.get(CONFIG, {}), dict):
            raise errors.DataError(f"{CONFIG!r} must be an object")

    def warm(self) -> None:
        """Import the library and load the datasets that the options name."""
        import reasoning_gym

        assert reasoning_gym.__version__, "the import is what matters"
        for name in self._options.datasets:
            self._scorer(name, {})

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Decide only that there is no answer."""
        text, formatted = self._find(answer.completion)
        return None if text else base.failed(enums.VerdictReason.NO_ANSWER, formatted=formatted)

    def grade(self, answer: base.Answer) -> base.Grade:
        decided = self.quick(answer)
        if decided is not None:
            return decided
        text, formatted = self._find(answer.completion)
        config = answer.columns.get(CONFIG) or {}
        assert isinstance(config, dict), "checked on arrival"
        scorer = self._scorer(gold.gym_dataset(answer.columns), config)
        return self._grade(float(scorer.score_answer(text, _entry(answer))), text, formatted)

    def _grade(self, score: float, text: str, formatted: bool) -> base.Grade:
        if not math.isfinite(score):
            return base.failed(enums.VerdictReason.WRONG, extracted=text, formatted=formatted, detail="no number")
        if score >= 1.0:
            return base.passed(text, formatted=formatted)
        partial = 0.0 if self._options.binary else max(0.0, score)
        wrong = base.failed(enums.VerdictReason.WRONG, extracted=text, formatted=formatted)
        return dataclasses.replace(wrong, score=partial)

    def _find(self, completion: str) -> tuple[str, bool]:
        text = completion[-spans.MAX_SCANNED_CHARS :]
        start = text.rfind(_OPEN)
        if start >= 0:
            return text[start + len(_OPEN) :].split(_CLOSE, 1)[0].strip(), True
        return ("", False) if self._options.require_tags else (text.strip(), False)

    def _scorer(self, name: str, config: dict[str, object]) -> Scorer:
        import reasoning_gym

        key = (name, json.dumps(config, sort_keys=True))
        if key not in self._scorers:
            if len(self._scorers) >= _MOST_DATASETS:
                self._scorers.clear()
            self._scorers[key] = reasoning_gym.create_dataset(name, **config)
        return self._scorers[key]


def _entry(answer: base.Answer) -> dict[str, object]:
    """Return the generator's entry again from the record's columns."""
    metadata = dict(gold.gym_metadata(answer.columns))
    for key in _TUPLES.get(gold.gym_dataset(answer.columns), ()):
        metadata[key] = _tuples(metadata.get(key))
    question = answer.columns.get("question", answer.prompt)
    return {"question": question, gold.ANSWER: answer.columns[gold.ANSWER], gold.METADATA: metadata}


def _tuples(value: object) -> object:
    return tuple(_tuples(member) for member in value) if isinstance(value, list) else value
