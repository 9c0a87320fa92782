"""A job that a random tiny model can be rewarded for: say the letter that the model finds likely after each prompt."""

import copy
import dataclasses
import json
import pathlib
import string

LETTERS = string.ascii_letters + string.digits
# How every question of this job ends.
PROMPT = "the letter is "


@dataclasses.dataclass(frozen=True, slots=True)
class TinyTask:
    """A model folder, training and held-out records."""

    model: pathlib.Path
    train: pathlib.Path
    held_out: pathlib.Path


def make_task(folder: pathlib.Path, *, num_train: int = 64, num_held_out: int = 16) -> TinyTask:
    """Write records whose answer is the most likely single letter under `folder`/model, so that rewards vary."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    letters = torch.tensor([tokenizer.convert_tokens_to_ids(letter) for letter in LETTERS])
    records = []
    for index in range(num_train + num_held_out):
        prompt = f"Question {index:03d}: {PROMPT}"
        ids = torch.tensor([tokenizer(prompt).input_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, -1, letters]
        records.append({"id": f"r{index:03d}", "prompt": prompt, "answer": LETTERS[int(logits.argmax())]})
    paths = {"train": records[:num_train], "held_out": records[num_train:]}
    for name, rows in paths.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TinyTask(folder / "model", folder / "train.jsonl", folder / "held_out.jsonl")


_MANIFEST: dict[str, object] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "maxSteps": 4,
        "seed": 3,
        "model": {},
        "data": {"template": "raw", "train": [], "filterGroups": {"enabled": False}},
        "algorithm": {"groupSize": 4, "promptsPerStep": 4},
        "async": {"maxOffPolicySteps": 1},
        "rollout": {
            "engine": {"enforceEager": True, "maxModelLen": 96, "maxNumSeqs": 16},
            "sampling": {"maxTokens": 1},
        },
        "verifier": {"rewards": [{"name": "letter", "type": "exact"}]},
        "trainer": {
            "optimizer": {"learningRate": "1e-3"},
            "deepspeed": {"zeroStage": 0},
            "gradientCheckpointing": False,
            "maxTokensPerMicroBatch": 1024,
        },
        "checkpoint": {"everySteps": 2},
        "evaluation": {"everySteps": 0, "suites": []},
    },
}


def manifest(task: TinyTask, changes: dict[str, object]) -> dict[str, object]:
    """Return the manifest with `changes`: dotted paths below spec, with `__` for the dot, to values."""
    document = copy.deepcopy(_MANIFEST)
    spec = document["spec"]
    assert isinstance(spec, dict)
    spec["model"] = {"name": str(task.model)}
    source = {"name": "letters", "path": str(task.train), "columns": {"id": "id"}, "maxPromptTokens": 64}
    spec["data"]["train"] = [source]
    spec["evaluation"]["suites"] = [{**source, "name": "held-out", "path": str(task.held_out)}]
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = spec
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
    return document
