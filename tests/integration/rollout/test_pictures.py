"""A model with a tower in the real vLLM: it reads pictures as transformers does, before and after an update."""

import dataclasses
import io
import pathlib
from collections.abc import Iterator, Sequence

import pytest

from rljob_api import types
from rljob_testing import engine_rig, models
from rljob_workers.models import families, vision
from rljob_workers.rollout import generation

PICTURES = tuple(models.picture(seed, size=(24, 20)) for seed in range(3))
SAMPLING = types.Sampling(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module", params=["siglip", "clip"])
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, make_rig
) -> Iterator[tuple[object, list[pathlib.Path]]]:
    root = tmp_path_factory.mktemp(request.param)
    folders = [models.make_tiny_llava(root / str(seed), seed=seed, tower=request.param) for seed in range(2)]
    keep_tower(folders)
    rig = make_rig(folders[0])
    rig.store.publish(1, folders[1], rig.stager.layout)
    yield rig, folders
    rig.close()


def keep_tower(folders: Sequence[pathlib.Path]) -> None:
    """Give all the tower of the first, as it is in the versions of a run: the engine remembers what it saw."""
    from safetensors.torch import load_file, save_file

    first, *others = (folder / "model.safetensors" for folder in folders)
    frozen = {name: each for name, each in load_file(first).items() if not name.startswith("language_model.")}
    for other in others:
        save_file(load_file(other) | frozen, other, metadata={"format": "pt"})


def prompt(folder: pathlib.Path, count: int) -> tuple[int, ...]:
    tokens = vision.tokens_of(families.read(folder))
    assert tokens is not None
    return tokens.expanded([40, 41, *[tokens.token_id] * count, *range(50, 70)], count, "a test")


def expected(folder: pathlib.Path, ids: Sequence[int], output: Sequence[int], shown: Sequence[bytes]) -> list[float]:
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor([Image.open(io.BytesIO(each)) for each in shown], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids, *output]]), pixel_values=pixels).logits[0]
    rows = torch.log_softmax(logits[len(ids) - 1 : -1], dim=-1)
    return [float(rows[index, token]) for index, token in enumerate(output)]


def ask(rig, ids: tuple[int, ...], shown: tuple[bytes, ...]) -> generation.GenerationResult:
    request = dataclasses.replace(rig.request(ids, SAMPLING), pictures=shown)
    return rig.loop.run_until_complete(rig.gate.generate(request))


def test_logprobs_of_prompts_with_pictures_are_those_of_transformers_in_every_version(seeing) -> None:
    rig, folders = seeing
    for version, folder in enumerate(folders):
        if version:
            assert rig.loop.run_until_complete(rig.follow(version)).failure == ""
        for shown in (PICTURES[:1], PICTURES[1:]):
            ids = prompt(folder, len(shown))
            # Twice: the second time what the engine remembers of the pictures is used.
            for _ in range(2):
                result = ask(rig, ids, shown)
                assert set(result.versions) == {version}
                engine_rig.assert_near(result.logprobs, expected(folder, ids, result.output_ids, shown))


def test_equal_words_about_other_pictures_share_no_prefix(seeing) -> None:
    rig, folders = seeing
    ids = prompt(folders[0], 1)
    first, other = ask(rig, ids, PICTURES[:1]), ask(rig, ids, PICTURES[1:2])
    assert first.logprobs[0] != other.logprobs[0]


def test_an_update_that_changes_no_weight_changes_no_answer(seeing) -> None:
    rig, _ = seeing
    rig.test_itself(tuple(range(40, 80)))
