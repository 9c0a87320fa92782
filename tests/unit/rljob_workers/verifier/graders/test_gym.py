"""`reasoning_gym`: each dataset's own score, in a worker; scorers that evaluate text are refused and stay known."""

import ast
import contextlib
import importlib.util
import json
import pathlib
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from rljob_api import enums, errors, process_config, types
from rljob_workers.data import gold
from rljob_workers.verifier import grading, service
from rljob_workers.verifier.graders import base, reasoning_gym

R = enums.VerdictReason

# One entry each, as the generators write them (seed 42), shortened to what their scorers read.
CHAIN_SUM = {"answer": "426", "metadata": {"source_dataset": "chain_sum"}}
WORD_LADDER = {
    "answer": "COLD,CORD,CARD",
    "metadata": {"source_dataset": "word_ladder", "start_word": "COLD", "end_word": "CARD"},
}

ARC = {
    "answer": "1 2\n3 4",
    "metadata": {"source_dataset": "rearc", "input": [[1, 3], [2, 4]], "output": [[1, 2], [3, 4]]},
}
Record = Mapping[str, object]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graded(
    make_config: Callable[..., process_config.VerifierConfig],
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> AsyncIterator[grading.Grading]:
    reward = process_config.GraderConfig(
        name="r", type="reasoning_gym", config={"datasets": ["chain_sum", "word_ladder"]}
    )
    async with running(make_config(reward, num_slots=1)) as verifier:
        yield verifier.grading


async def verdict_of(graded: grading.Grading, completion: str, record: Record) -> types.Verdict:
    item = types.VerifyItem(sample_id="s", attempt=0, prompt="", completion=completion, columns=record)
    return (await graded.verify([item]))[0]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("completion", "record", "reward", "reason", "formatted"),
    [
        ("426", CHAIN_SUM, 1.0, R.OK, False),
        ("I add: <answer>0426.00</answer> done", CHAIN_SUM, 1.0, R.OK, True),
        ("<answer>1</answer> no, <answer>426", CHAIN_SUM, 1.0, R.OK, True),
        ("427", CHAIN_SUM, 0.0, R.WRONG, False),
        ("it is 426", CHAIN_SUM, 3 / 9, R.WRONG, False),
        ("", CHAIN_SUM, 0.0, R.NO_ANSWER, False),
        ("<answer> </answer>", CHAIN_SUM, 0.0, R.NO_ANSWER, True),
        ("cold, cord, card", WORD_LADDER, 1.0, R.OK, False),
        ("cold, card", WORD_LADDER, 0.0, R.WRONG, False),
        ("1 2\n3 4", ARC, 1.0, R.OK, False),
        ("1 2\n3 5", ARC, 0.05, R.WRONG, False),
    ],
)
async def test_score_is_the_datasets_own(
    graded: grading.Grading,
    completion: str,
    record: Record,
    reward: float,
    reason: enums.VerdictReason,
    formatted: bool,
) -> None:
    verdict = await verdict_of(graded, completion, record)
    assert verdict.reward == pytest.approx(reward)
    assert (verdict.reason, verdict.formatted) == (reason, formatted)


@pytest.mark.asyncio(loop_scope="module")
async def test_metadata_may_arrive_as_json_text(graded: grading.Grading) -> None:
    record = {"answer": "426", "metadata": json.dumps(CHAIN_SUM["metadata"])}
    assert (await verdict_of(graded, "426", record)).reward == 1.0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("missing", ["answer", "metadata"])
async def test_missing_key_is_an_error_naming_it(graded: grading.Grading, missing: str) -> None:
    record = {key: value for key, value in CHAIN_SUM.items() if key != missing}
    with pytest.raises(errors.GraderError, match=missing):
        await verdict_of(graded, "426", record)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("dataset", sorted(gold.REFUSED_DATASETS))
async def test_dataset_that_would_evaluate_text_is_refused(graded: grading.Grading, dataset: str) -> None:
    with pytest.raises(errors.GraderError, match=f"{dataset}.*refused"):
        await verdict_of(graded, "1", {"answer": "1", "metadata": {"source_dataset": dataset}})


def make_grader(**config: object) -> reasoning_gym.GymGrader:
    return reasoning_gym.GymGrader(process_config.GraderConfig(name="r", type="reasoning_gym", config=config))


def test_tags_may_be_required() -> None:
    answer = base.Answer(prompt="", completion="426", columns=CHAIN_SUM)
    grade = make_grader(requireTags=True).quick(answer)
    assert grade is not None
    assert grade.reason is R.NO_ANSWER


def test_refused_dataset_cannot_be_preloaded() -> None:
    with pytest.raises(errors.ManifestError, match="countdown"):
        make_grader(datasets=["countdown"])


def library() -> pathlib.Path:
    spec = importlib.util.find_spec("reasoning_gym")
    assert spec is not None
    assert spec.origin is not None
    return pathlib.Path(spec.origin).parent


def dataset_names(tree: ast.Module) -> set[str]:
    """Return the names that a module registers: `register_dataset(NAME, ...)`, NAME a literal or a module constant."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "register_dataset":
            name = node.args[0]
            found.add(constants[name.id] if isinstance(name, ast.Name) else getattr(name, "value", None))
    return {str(name) for name in found}


EVALUATORS = {"eval", "exec", "compile", "sympify", "S", "parse_expr", "literal_eval", "__import__", "lambdify"}
# Evaluates the record's gold or problem, never the completion, or is a parser of the dataset's own by that name.
READ_AND_HARMLESS = {
    ("number_sorting", "eval"),
    ("bitwise_arithmetic", "eval"),
    ("basic_arithmetic", "eval"),
    ("codeio", "exec"),
    ("propositional_logic", "parse_expr"),
    ("gsm_symbolic", "eval"),
    ("bf", "compile"),
}


def test_every_dataset_of_the_installed_library_was_read_and_none_that_is_scored_evaluates_text() -> None:
    registered: set[str] = set()
    for path in library().rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names_here = dataset_names(tree)
        registered |= names_here
        called = {
            node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        }
        for name in names_here & gold.SCORED_DATASETS:
            risky = {
                call
                for call in called & EVALUATORS
                if (name, call) not in READ_AND_HARMLESS and not (call == "compile" and "re" in imported(tree))
            }
            assert not risky, f"{name} calls {risky}: read its scorer again, then list or refuse it"
    assert registered == gold.SCORED_DATASETS | set(gold.REFUSED_DATASETS)


def imported(tree: ast.Module) -> set[str]:
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
