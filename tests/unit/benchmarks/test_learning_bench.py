"""The learning bench: its grid, pairs and page; what its tasks promise; that a batch samples like each row alone."""

import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
import torch
from tests.bench.learning import base_model, page, peer, results, sampling, scoring, sides, tasks

from rljob_api.validation import load
from rljob_testing import examples

CELL = sides.Cell(seed=0, task="addition", side="lag 0", steps=4)


def test_a_bench_starts_from_the_root_as_the_documents_print_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "tests.bench.learning", "--seeds", "0", "--max-runs", "none"]
    done = subprocess.run(command, cwd=examples.ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert "argument --max-runs: invalid int value: 'none'" in done.stderr


def make_run(
    held_out: float = 0.5, *, rewards: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4), sampled: float = 0.4, **cell: object
) -> results.Run:
    return results.Run(
        cell=dataclasses.replace(CELL, **cell),  # type: ignore[arg-type]  # fields of a cell
        rewards=rewards, held_out=held_out, sampled=sampled, gap=0.01, cpu_s=9.0, base="b1", commit="c0ffee",
        machine="a CPU, 2 cores", time="2026-01-02T03:04:05+00:00",
    )  # fmt: skip


@pytest.fixture(scope="module")
def made() -> dict[str, tasks.Task]:
    return {name: make() for name, make in tasks.MAKERS.items()}


@pytest.fixture(scope="module")
def tokenizer(made: dict[str, tasks.Task], tmp_path_factory: pytest.TempPathFactory) -> base_model.Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    base_model.write_tokenizer(folder, made.values())
    return base_model.Tokenizer(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["adition"]}, "task 'adition' is not one of addition, word sums"),
        ({"sides": ["lag 3"]}, "side 'lag 3' is not one of TRL, lag 0, lag 1"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_what_the_grid_cannot_have_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    whole = {"tasks": ["addition"], "sides": ["lag 0"], "seeds": [0], "steps": 4, "known_tasks": page.TASKS}
    with pytest.raises(ValueError, match=message):
        sides.grid(**(whole | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("side", list(sides.SIDES))
def test_the_manifest_of_a_side_is_one_that_trains(side: str) -> None:
    cell = dataclasses.replace(CELL, side=side)
    spec = load.load_manifest(json.dumps(sides.manifest(cell, model="m", max_tokens=4))).spec
    assert spec.async_.max_off_policy_steps == sides.SIDES[side].lag


def test_what_was_run_with_another_base_model_is_missing() -> None:
    cells = sides.grid(tasks=["addition"], sides=["lag 0", "lag 4"], seeds=[0], steps=4, known_tasks=page.TASKS)
    assert results.missing(cells, [make_run()], base="b1") == cells[1:]
    assert results.missing(cells, [make_run()], base="b2") == cells


def test_a_stored_run_is_the_run() -> None:
    assert results.from_line(results.to_line(make_run())) == make_run()


def test_pairs_are_of_one_seed_task_and_base_model() -> None:
    runs = [make_run(0.5), make_run(0.5, seed=1), make_run(0.4, side="lag 4"), make_run(0.2, side="lag 4", seed=1)]
    runs += [make_run(0.9, side="lag 4", seed=2), dataclasses.replace(make_run(0.9, side="lag 4", seed=1), base="b2")]
    assert results.differences(runs, side="lag 4", base_side="lag 0", task="addition") == pytest.approx([-0.1, -0.3])
    found = results.by_task(runs, side="lag 4", base_side="lag 0", tasks=["addition", "counting"])
    assert {task: (part.mean, part.error) for task, part in found.items()} == {
        "addition": (pytest.approx(-0.2), pytest.approx(0.1))
    }


def test_the_page_has_a_row_for_each_side_that_was_run_and_none_for_others() -> None:
    runs = [
        make_run(0.5),
        make_run(0.4, side="lag 4", rewards=(0.1, 0.1, 0.2, 0.4), sampled=0.35),
        make_run(0.5, seed=1),
    ]
    runs.append(make_run(0.2, side="lag 4", seed=1, rewards=(0.1, 0.1, 0.2, 0.2), sampled=0.35))
    text = page.text(runs)
    rows = [line for line in text.splitlines() if line.startswith("| lag 4 |")]
    assert rows[0] == "| lag 4 | -0.200 ± 0.100 | -0.200 ± 0.100 | -0.050 ± 0.000 | -0.075 ± 0.025 | 2 | 0.01 |"
    assert "- lag 4 is 2.0 standard errors below lag 0: -0.200 over all tasks." in text.splitlines()
    assert "| lag 2 | -" not in text
    assert "## Recipes" not in text
    assert "no run of it is stored" in text


def test_the_page_compares_each_lag_of_the_defaults_with_the_peer_and_no_other_side() -> None:
    runs = [
        make_run(held_out, side=side, seed=seed)
        for side, scores in {"TRL": (0.3, 0.4), "lag 0": (0.4, 0.4), "lag 4": (0.5, 0.6)}.items()
        for seed, held_out in enumerate(scores)
    ]
    runs.append(make_run(0.9, side="recompute at lag 4"))
    lines = page.text(runs).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| less TRL |"))
    found = [line.split(" | ")[:2] for line in lines[start + 2 : start + 5]]
    assert found == [["| lag 0", "(+0.050 ± 0.050)"], ["| lag 4", "+0.200 ± 0.000"], [""]]


def test_the_page_says_what_a_peer_takes_to_half_of_our_gain() -> None:
    """Halfway is 0.16: means of three steps reach it with step 6 of ours and step 8 of the peer's."""
    ours, theirs = (0.0,) * 3 + (0.2, 0.2, 0.4, 0.4, 0.4), (0.0,) * 5 + (0.2, 0.2, 0.2)
    runs = [dataclasses.replace(make_run(rewards=ours), cpu_s=4.0)]
    runs.append(dataclasses.replace(make_run(rewards=theirs, side="TRL"), cpu_s=16.0))
    assert "| addition | 0.16 | 3.0 | 16.0 | 0.19 |" in page.text(runs)
    assert "no run of it is stored" not in page.text(runs)
    runs[1] = dataclasses.replace(runs[1], rewards=(0.0,) * 8)
    assert "| addition | 0.16 | 3.0 | - | - |" in page.text(runs)


def test_the_page_in_the_documentation_is_what_its_results_make() -> None:
    path = examples.ROOT / "docs/learning.jsonl"
    if runs := results.read(path):
        written = path.with_suffix(".md").read_text(encoding="utf-8")
        assert written == page.text(runs), "run python -m tests.bench.learning --max-runs 0"
    else:
        assert not path.with_suffix(".md").exists(), "a page without results"


@pytest.mark.parametrize("name", list(tasks.MAKERS))
def test_held_out_questions_are_not_trained_and_demonstrations_earn_what_they_look_like(
    made: dict[str, tasks.Task], name: str
) -> None:
    task, draw = made[name], random.Random(0)
    if name != "guessing":
        trained = {record.prompt for record in task.train}
        assert not [record for record in task.held_out if record.prompt in trained]
    scores = []
    for record in task.held_out[:60]:
        episode = task.begin(record)
        for turn in task.demonstrate(record, draw):
            reply = episode.respond(turn.answer)
            assert reply.feedback == (turn.feedback or None)
        scores.append(reply.reward)
    assert 0.05 < sum(scores) / len(scores) < 0.7, "there is something to learn, and something to learn from"
    assert max(scores) == 1.0


@pytest.mark.parametrize("name", list(tasks.MAKERS))
def test_prompts_and_demonstrations_are_spelled_by_the_tokenizer_and_fit(
    made: dict[str, tasks.Task], tokenizer: base_model.Tokenizer, name: str
) -> None:
    task, draw = made[name], random.Random(0)
    for record in (*task.train[:40], *task.held_out[:20]):
        turns = task.demonstrate(record, draw)
        text = record.prompt + "".join(turn.answer + turn.feedback for turn in turns)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.end not in tokenizer.encode(text)
        assert all(len(tokenizer.encode(turn.answer)) < task.max_tokens for turn in turns)
        tokens, labels = base_model.row(tokenizer, record, turns)
        assert len(tokens) == len(labels) < sampling.MOST_TOKENS
        assert labels.count(tokenizer.end) == len(turns)


def test_rows_of_one_batch_are_scored_like_each_alone(
    made: dict[str, tasks.Task], tokenizer: base_model.Tokenizer
) -> None:
    """The recorded log-probabilities are those of plain causal attention over the whole row, feedback included."""
    torch.manual_seed(0)
    model = base_model.new_model(512)
    sampler = sampling.Sampler(model, tokenizer)
    task = made["guessing"]
    rows = sampler.sample(task, task.train[:3], noise=sampling.noise_of("test", rows=3), version=7)
    for row in rows:
        with torch.no_grad():
            whole = torch.log_softmax(model(input_ids=torch.tensor([list(row.tokens)])).logits[0], -1)
        for place in (index for index, sampled in enumerate(row.loss_mask) if sampled):
            assert row.logprobs[place] == pytest.approx(float(whole[place - 1, row.tokens[place]]), abs=1e-4)
            assert row.versions[place] == 7
    assert max(row.num_turns for row in rows) == 3


def test_what_a_row_samples_depends_on_its_noise_alone(
    made: dict[str, tasks.Task], tokenizer: base_model.Tokenizer
) -> None:
    torch.manual_seed(0)
    sampler = sampling.Sampler(base_model.new_model(512), tokenizer)
    task, noise = made["addition"], sampling.noise_of("test", rows=4)
    together = sampler.sample(task, task.train[:4], noise=noise)
    alone = [sampler.sample(task, [task.train[row]], noise=noise[:, row : row + 1])[0] for row in range(4)]
    assert [list(row.tokens) for row in together] == [list(row.tokens) for row in alone]


def test_a_run_sees_every_prompt_once_before_any_twice(made: dict[str, tasks.Task]) -> None:
    records = made["guessing"].train
    ordered = tasks.order(records, seed=3, count=20)
    assert {id(record) for record in ordered[:9]} == {id(record) for record in records}
    assert ordered == tasks.order(records, seed=3, count=20)
    assert ordered != tasks.order(records, seed=4, count=20)


_PROGRAM = """
import json, pathlib, shutil, socket, sys
samples, base, questions, out, seed, steps, rate, max_tokens, fd = sys.argv[1:]
channel = socket.socket(fileno=int(fd)).makefile("rw", encoding="utf-8")
prompts = json.loads(pathlib.Path(questions).read_text())
for step in range(int(steps)):
    numbers = [16 * step + place for place in range(16) for _ in range(int(samples))]
    # Every sum right but that of the step's first question.
    texts = [str(sum(map(int, prompts[number].rstrip("=").split("+"))) + (number % 16 == 0)) for number in numbers]
    channel.write(json.dumps({"questions": list(numbers), "completions": texts}) + chr(10))
    channel.flush()
    assert json.loads(channel.readline()) == [0.0] * int(samples) + [1.0] * 15 * int(samples)
shutil.copytree(base, out)
(pathlib.Path(out) / "cpu_s.json").write_text("2.5")
"""


def test_a_peer_gets_the_questions_in_order_and_our_scores_and_its_last_weights_are_scored(
    made: dict[str, tasks.Task], tmp_path: pathlib.Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    torch.manual_seed(0)
    base_model.new_model(base_model.write_tokenizer(base, made.values())).save_pretrained(base)
    outcome = peer.train(CELL, made["addition"], base, tmp_path, [sys.executable, "-c", _PROGRAM, "8"])
    assert outcome.rewards == (15 / 16,) * CELL.steps
    assert outcome.held_out == scoring.score(scoring.sampler_of(base, base), made["addition"], greedy=True)
    assert outcome.cpu_s == 2.5


def test_a_peer_with_fewer_samples_than_we_have_is_refused(made: dict[str, tasks.Task], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="step 1 asks about questions 0 to 15, 64 answers"):
        peer.train(CELL, made["addition"], tmp_path, tmp_path, [sys.executable, "-c", _PROGRAM, "4"])


def test_a_peer_that_fails_is_an_error_with_its_last_words(made: dict[str, tasks.Task], tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 1: no TRL here"):
        peer.train(
            CELL, made["addition"], tmp_path, tmp_path, [sys.executable, "-c", "raise SystemExit('no TRL here')"]
        )


def test_a_peer_is_no_rank_of_ours(
    made: dict[str, tasks.Task], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    program = "import os; raise SystemExit('rank ' + str(os.environ.get('RANK')))"
    with pytest.raises(RuntimeError, match="ended with 1: rank None"):
        peer.train(CELL, made["addition"], tmp_path, tmp_path, [sys.executable, "-c", program])
