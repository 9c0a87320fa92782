"""The model card of a trained model: where it comes from, as README.md of a repository on the Hugging Face hub. Pure.

No path of the machine, no address of a store and no value of a Secret is in it: what is not public is named by its name
in the manifest alone.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api import resolve
from rljob_api.manifest.model import BUILTIN
from rljob_workers.local.rundir import history

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LAST_STEPS = 5
# A part of a recorded spec, by YAML keys; its values have no static types.
_Part = Mapping[str, Any]


def is_hub_id(name: str) -> bool:
    """Return whether a name can be that of a repository on the hub, ORG/NAME."""
    return _HUB_ID.fullmatch(name) is not None


def text(
    *, job: str, spec: Mapping[str, object], run: history.Run, versions: Mapping[str, str], local_model: bool
) -> str:
    """Return the card. spec: as it was recorded. versions: of packages, by name. local_model: spec.model.name is a
    folder of this machine though it may read as a repository's name.
    """
    base, name, revision = _base_model(spec, local=local_model), _cell(job), _at(spec, "model.revision")
    rows = [
        (
            "base model",
            base + (f" at {_cell(str(revision))}" if revision else "") if base else "one that is not public",
        ),
        ("job", f"`{name}`, digest of its settings `{resolve.digest(spec)[:16]}`"),
        ("algorithm", ", ".join(_algorithm(spec))),
        ("steps", _steps(run, spec)),
        *(("trained on" if index == 0 else "", source) for index, source in enumerate(_sources(_train(spec)))),
        *_rewards(run),
        ("versions where it was pushed", ", ".join(f"{package} {version}" for package, version in versions.items())),
    ]
    body = [
        f"# {name}",
        "Trained by reinforcement learning with rljob.",
        "## Provenance\n" + _table(("", ""), rows),
        *_held_out(run),
    ]
    return f"---\n{_header(spec, base)}---\n" + "\n\n".join(body) + "\n"


def _header(spec: Mapping[str, object], base: str) -> str:
    """Return what the hub reads, as YAML; JSON is YAML too, so that no name can leave its place."""
    estimator = str(_at(spec, "algorithm.advantageEstimator") or "")
    data_sets = [str(source["hub"]) for source in _train(spec) if is_hub_id(str(source.get("hub") or ""))]
    fields: dict[str, object] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["rljob", "reinforcement-learning", *([estimator] if estimator else [])],
    }
    if is_hub_id(base):
        fields["base_model"] = base
    if data_sets:
        fields["datasets"] = data_sets
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())


def _base_model(spec: Mapping[str, object], *, local: bool) -> str:
    """Return the base model's public name, empty if it has none."""
    name = str(_at(spec, "model.name") or "")
    public = name.startswith(BUILTIN) or (is_hub_id(name) and not local and not _at(spec, "model.source.path"))
    return _cell(name) if public else ""


def _algorithm(spec: Mapping[str, object]) -> Iterator[str]:
    for label, path in (
        ("advantages", "algorithm.advantageEstimator"),
        ("loss", "algorithm.loss.type"),
        ("optimizer", "trainer.optimizer.type"),
        ("learning rate", "trainer.optimizer.learningRate"),
        ("answers a prompt", "algorithm.groupSize"),
        ("prompts a step", "algorithm.promptsPerStep"),
    ):
        value = _at(spec, path)
        if value is not None:
            yield f"{label} {_cell(str(value))}"
    if _at(spec, "model.lora") is not None:
        yield f"adapter of rank {_cell(str(_at(spec, 'model.lora.rank')))}, added to the weights"


def _steps(run: history.Run, spec: Mapping[str, object]) -> str:
    done, planned = (run.steps[-1].step if run.steps else 0), _at(spec, "maxSteps")
    supervised = f", the first {len(run.sft_steps)} supervised" if run.sft_steps else ""
    return f"{done} of {planned}{supervised}"


def _train(spec: Mapping[str, object]) -> Sequence[_Part]:
    sources = _at(spec, "data.train")
    return [source for source in sources if isinstance(source, Mapping)] if isinstance(sources, Sequence) else []


def _sources(sources: Sequence[_Part]) -> Iterator[str]:
    for source in sources:
        name, generated = _cell(str(source.get("name", ""))), source.get("reasoningGym")
        what = "records that are not public"
        if is_hub_id(str(source.get("hub") or "")):
            what = f"{_cell(str(source['hub']))} of the hub, split {_cell(str(source.get('split', 'train')))}"
        elif isinstance(generated, Mapping):
            what = f"tasks `{_cell(str(generated.get('name', '')))}` of reasoning-gym"
        yield f"`{name}`: {what}" + (", as examples" if source.get("phase") == "SFT" else "")


def _rewards(run: history.Run) -> Iterator[tuple[str, str]]:
    if run.rewards:
        last = run.rewards[-_LAST_STEPS:]
        yield (
            "mean reward",
            f"{run.rewards[0]:.3f} in the first step, {sum(last) / len(last):.3f} in the last {len(last)}",
        )


def _held_out(run: history.Run) -> Iterator[str]:
    rows = []
    for suite in sorted({result.suite for result in run.evaluations}):
        results = [result for result in run.evaluations if result.suite == suite]
        first, last = results[0], results[-1]
        before = "" if first is last else f"{first.accuracy:.1%} (step {first.step})"
        rows.append((f"`{_cell(suite)}`", before, f"{last.accuracy:.1%} (step {last.step})", str(last.n)))
    if rows:
        yield "## Held-out accuracy\n" + _table(("suite", "before", "after", "prompts"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: str) -> str:
    """Return a text that stays in its place of a table: one line, without what Markdown reads."""
    return re.sub(r"[^\w ./:@+-]", "_", value)[:200]


def _at(spec: Mapping[str, object], path: str) -> Any:
    node: object = spec
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
