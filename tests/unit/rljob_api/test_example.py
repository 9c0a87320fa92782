import json
import pathlib
import types

import pytest

from rljob_api import resolve
from rljob_api.validation.load import load_manifest
from rljob_testing import examples

EXAMPLES = examples.EXAMPLES


@pytest.fixture
def generator() -> types.ModuleType:
    return examples.generator("make_addition_data")


def records(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (EXAMPLES / "data" / name).read_text().splitlines()]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_example_resolves_and_its_data_exist(path: pathlib.Path) -> None:
    job = load_manifest(path.read_text(encoding="utf-8"))
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir=str(EXAMPLES), cache_dir="/c", ports=range(30), num_cores=2
    )
    coordinator = resolve.resolve(job, placement).coordinator
    sources = [*coordinator.spec.data.train, *coordinator.spec.evaluation.suites]
    # What lies elsewhere is on a claim of the cluster that the coordinator mounts.
    beside = [
        pathlib.Path(path) for path in (source.path or "" for source in sources) if path.startswith(str(EXAMPLES))
    ]
    assert [path for path in beside if not path.is_file()] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_path_outside_the_examples_is_below_a_folder_that_the_coordinator_mounts(path: pathlib.Path) -> None:
    spec = load_manifest(path.read_text(encoding="utf-8")).spec
    mounted = tuple(f"{mount.mount_path}/" for mount in spec.coordinator.pod.volume_mounts)
    outside = [source.path for source in spec.data.train if source.path and source.path.startswith("/")]
    assert [text for text in outside if not text.startswith(mounted)] == []


def test_areal_math_reads_golds_from_worked_solutions_and_not_from_bare_expressions() -> None:
    r"""Of the bare answer \frac{1}{2} it would take the last number, 2; of one without a number, nothing."""
    specs = {path.stem: load_manifest(path.read_text(encoding="utf-8")).spec for path in EXAMPLES.glob("*.yaml")}
    read = {
        (name, source.name): source.columns.answer
        for name, spec in specs.items()
        if "areal-math" in [reward.type for reward in spec.verifier.rewards]
        for source in [*spec.data.train, *spec.evaluation.suites]
        if source.hub
    }
    assert read == dict.fromkeys(
        [(name, source) for name in ("areal-multi-turn-math", "areal-math-code") for source in ("math", "math-500")],
        "solution",
    )


def test_committed_data_are_what_the_generator_makes(generator: types.ModuleType) -> None:
    train, held_out = generator.split(generator.questions())
    for name, pairs in (("train", train), ("held-out", held_out)):
        committed = (EXAMPLES / "data" / f"addition-{name}.jsonl").read_text()
        assert committed == generator.lines(name, pairs), "run `python crds/examples/make_addition_data.py` and commit"


def test_no_held_out_question_is_trained_on_or_shown() -> None:
    def question(prompt: str) -> frozenset[str]:
        return frozenset(prompt.splitlines()[-1].removesuffix(" = ").split(" + "))

    held_out = {question(record["prompt"]) for record in records("addition-held-out.jsonl")}
    train = {question(record["prompt"]) for record in records("addition-train.jsonl")}
    shown = {
        frozenset(line.split("=")[0].split("+"))
        for record in records("addition-train.jsonl")
        for line in record["prompt"].splitlines()[:-1]
    }
    assert len(held_out) == 200
    assert not held_out & train
    assert not held_out & shown


def test_every_answer_is_the_sum() -> None:
    for record in [*records("addition-train.jsonl"), *records("addition-held-out.jsonl")]:
        first, second = record["prompt"].splitlines()[-1].removesuffix(" = ").split(" + ")
        assert record["answer"] == str(int(first) + int(second))
        assert record["prompt"].endswith(" = ")
