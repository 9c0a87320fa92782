"""`type: mlflow`: a run of an MLflow tracking server, or of MLflow's files, written with mlflow-skinny.

The run is found again by a tag with the job's uid. `log_batch` returns when the server has stored the metrics.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from rljob_api.manifest import trackers
from rljob_workers.coordinator.trackers import base

ItemT = TypeVar("ItemT")
UID_TAG = "rljob.uid"
# What one call takes, of mlflow.utils.validation; a parameter's length is that of servers before MLflow 2.8.
_MOST_METRICS = 1000
_MOST_PARAMS_A_CALL = 100
_LONGEST_KEY = 250
_LONGEST_PARAM = 500
_MOST_PARAMS = 1000


class MlflowTracker(base.Tracker):
    """Logs metrics under the trainer's steps. Steps that come again are further points of the same step."""

    options = trackers.MlflowOptions

    def __init__(self, run: base.Run, config: trackers.MlflowOptions) -> None:
        """Find the run, or make it, and log the spec's values as its parameters. Raises MlflowException."""
        # Nothing is reported to MLflow's makers. Files are its one store without a server and without SQLAlchemy, which
        # it writes if it is told so.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow
        from mlflow import entities

        self._entities = entities
        place = config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or str(run.folder / "mlruns")
        self._client = mlflow.MlflowClient(tracking_uri=place)
        self._unsent: list[entities.Metric] = []
        experiment = self._client.get_experiment_by_name(config.experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(config.experiment)
        same_uid = f"tags.`{UID_TAG}` = '{run.uid}'"
        earlier = self._client.search_runs([experiment_id], filter_string=same_uid, max_results=1)
        if earlier:
            self._client.update_run(earlier[0].info.run_id, status="RUNNING")
        tags = {UID_TAG: run.uid, "rljob.namespace": run.namespace}
        this = earlier[0] if earlier else self._client.create_run(experiment_id, tags=tags, run_name=run.name)
        self._run_id = this.info.run_id
        # One that is there keeps its value, which MLflow lets no one change.
        new = {name: value for name, value in parameters(run.spec).items() if name not in this.data.params}
        for batch in _batches(itertools.starmap(entities.Param, new.items()), _MOST_PARAMS_A_CALL):
            self._client.log_batch(self._run_id, params=batch)

    def log(self, point: base.Point) -> None:
        """Keep the metrics for `flush`."""
        at_ms = int(point.at * 1000)
        self._unsent += [
            self._entities.Metric(allowed(name), value, at_ms, point.step) for name, value in point.metrics.items()
        ]

    def rewind(self, step: int) -> None:
        """Do nothing: MLflow deletes no points."""

    def flush(self) -> None:
        """Send the metrics, and return once they are stored. Raises MlflowException."""
        for batch in _batches(self._unsent, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=batch, synchronous=True)
        self._unsent.clear()

    def close(self) -> None:
        """Say that the run has ended."""
        self._client.set_terminated(self._run_id)


def allowed(name: str) -> str:
    """Return a name as MLflow takes it: `_` for other characters than letters, digits, spaces and `_-.:/`, and for
    parts between slashes that are empty or only dots; of at most 250 characters.
    """
    parts = (re.sub(r"[^\w.\- :]", "_", part) for part in name.split("/"))
    return "/".join(part if part.strip(".") else "_" * max(1, len(part)) for part in parts)[:_LONGEST_KEY]


def parameters(spec: Mapping[str, object]) -> dict[str, str]:
    """Return the values of a spec by their paths with dots, the first 1,000, each cut to 500 characters."""
    flat = ((allowed(path), text[:_LONGEST_PARAM]) for path, text in _flat(spec, ""))
    return dict(itertools.islice(flat, _MOST_PARAMS))


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        for index, each in enumerate(value):
            yield from _flat(each, f"{path}.{index}")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def _batches(items: Iterable[ItemT], most: int) -> Iterator[list[ItemT]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, most)):
        yield batch


TRACKER = MlflowTracker
