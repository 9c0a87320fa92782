"""A whole run of a model that reads pictures: the same question about each, and the answer is in the picture."""

import base64
import io
import json
import pathlib

import pytest

from rljob_testing import jobs, models
from rljob_testing.runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_TRAIN, NUM_HELD_OUT = 32, 8
QUESTION = f"<image>{jobs.PROMPT}"


def make_task(folder: pathlib.Path) -> jobs.TinyTask:
    """Write records whose answer is the letter that the model finds the likeliest about their picture."""
    import torch
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    models.make_tiny_llava(folder / "model")
    model = AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder / "model")
    letters = torch.tensor([processor.tokenizer.convert_tokens_to_ids(letter) for letter in jobs.LETTERS])
    text = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION.replace("<image>", models.PICTURE_TOKEN)}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    records = []
    for index in range(NUM_TRAIN + NUM_HELD_OUT):
        file = models.picture(index)
        inputs = processor(text=text, images=[Image.open(io.BytesIO(file))], return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0, -1, letters]
        address = "data:image/png;base64," + base64.b64encode(file).decode()
        answer = jobs.LETTERS[int(logits.argmax())]
        records.append({"id": f"r{index:03d}", "prompt": QUESTION, "answer": answer, "images": [address]})
    for name, rows in (("train", records[:NUM_TRAIN]), ("held_out", records[NUM_TRAIN:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len({record["answer"] for record in records}) > 2, "the picture decides"
    return jobs.TinyTask(folder / "model", folder / "train.jsonl", folder / "held_out.jsonl")


def test_a_run_on_pictures_samples_from_what_it_trains_and_leaves_a_model_that_reads_them(rljob: Runs) -> None:
    import torch
    from PIL import Image
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText, AutoProcessor

    rljob.task = make_task(rljob.folder)
    source = {
        "name": "letters", "path": str(rljob.task.train), "maxPromptTokens": 64,
        "columns": {"id": "id", "images": "images"},
    }  # fmt: skip
    changes: dict[str, object] = {
        "data__template": "chat",
        "data__train": [source],
        "evaluation__suites": [{**source, "name": "held-out", "path": str(rljob.task.held_out)}],
        "rollout__engine__maxModelLen": 128,
        "algorithm__groupSize": 16,
        # Each step then compares engine and trainer on the same version.
        "async__maxOffPolicySteps": 0,
    }
    code, output = rljob.run(rljob.manifest(maxSteps=5, **changes))
    assert code == 0, output
    stats = [step["stats"] for step in rljob.steps()]
    assert len(stats) == 5
    # A picture in another place, another one, or none would be another policy.
    assert max(each["mismatch/abs_diff"] for each in stats) < 0.1
    assert rljob.audit() == ""
    export = rljob.folder / "run" / "export"
    before, after = (load_file(folder / "model.safetensors") for folder in (rljob.task.model, export))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not [name for name in changed if "vision_tower" in name or "projector" in name], "they are frozen"
    processor = AutoProcessor.from_pretrained(export)
    model = AutoModelForImageTextToText.from_pretrained(export)
    inputs = processor(
        text=f"a{models.PICTURE_TOKEN}b", images=[Image.open(io.BytesIO(models.picture()))], return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.isfinite(model(**inputs).logits).all()
