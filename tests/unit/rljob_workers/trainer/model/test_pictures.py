"""A model with a tower: packed rows read pictures as single rows do by its own code, and its files come back."""

import io
import pathlib
from collections.abc import Callable, Sequence

import pytest
import torch
import transformers
from PIL import Image

from rljob_api import errors, types
from rljob_api.manifest.job import JobSpec
from rljob_testing import local_weights, models
from rljob_testing.clock import FakeClock
from rljob_testing.sections import make_spec
from rljob_workers.coordinator.batching import packing
from rljob_workers.models import families, vision
from rljob_workers.runtime import machine
from rljob_workers.trainer.model import batch_tensors, loading, policy, selftest

CPU = torch.device("cpu")
TOKEN, COUNT = 3, 4
SHOWN = [{"name": "train", "path": "train.jsonl", "maxPromptTokens": 56, "columns": {"images": "images"}}]


@pytest.fixture(scope="module", params=["siglip", "clip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return models.make_tiny_llava(tmp_path_factory.mktemp(request.param), tower=request.param)


def spec(dtype: str) -> JobSpec:
    return make_spec({"trainer.dtype": dtype, "model.dtype": dtype, "data.train": SHOWN})


def loaded(folder: pathlib.Path, dtype: str = "float32") -> policy.Policy:
    lm = loading.load_model(folder, spec(dtype), CPU)
    return policy.Policy(lm, temperature=1.0, chunk_tokens=1024, pixels=loading.pixels_of(lm, folder))


def sample(row: int, group: str, tokens: Sequence[int], answer: Sequence[int], *pictures: types.Picture):
    flags = [0] * len(tokens) + [1] * len(answer)
    return types.TrainSample(
        group_id=types.GroupId(group), sample_index=row % 2, row=row, group=row // 2,
        tokens=types.ints([*tokens, *answer]), loss_mask=types.mask(flags), logprobs=types.floats([0.0] * len(flags)),
        version_steps=types.ints([0] * len(answer)), advantages=types.floats([1.0] * len(answer)),
        raw_reward=1.0, shaped_reward=1.0, pictures=pictures,
    )  # fmt: skip


def rows_of_two_groups() -> list[types.TrainSample]:
    """Two groups of equal questions with other pictures, the second with two of them."""
    seen = [models.picture(seed, size=(20, 12)) for seed in range(3)]
    first = [10, 11, *[TOKEN] * COUNT, 12, 13]
    second = [10, *[TOKEN] * COUNT, *[TOKEN] * COUNT, 12]
    one = types.Picture(start=2, data=seen[0])
    two = types.Picture(start=1, data=seen[1]), types.Picture(start=1 + COUNT, data=seen[2])
    return [
        # An answer may hold the token of a picture: it is a token like others there.
        sample(0, "a", first, [20, TOKEN, 22], one),
        sample(1, "a", first, [20, 23], one),
        sample(2, "b", second, [30], *two),
        sample(3, "b", second, [31, 32, 33], *two),
    ]


def packed(rows: Sequence[types.TrainSample]) -> types.MicroBatch:
    shape = packing.Shape(seed=0, minibatches=1, epochs=1, world_size=1, max_tokens=1000)
    (batch,) = packing.pack(rows, step=1, shape=shape).micro_batches[0]
    return batch


def scored(model: policy.Policy, batch: types.MicroBatch) -> dict[tuple[int, int], float]:
    """Return log-probabilities by row and place among its sampled tokens."""
    tensors = batch_tensors.to_tensors(batch, CPU)
    with torch.no_grad():
        values, *_ = model(*tensors.inputs)
    rows = [batch.rows[index].row for index in batch.row_index]
    places = [rows[:index].count(row) for index, row in enumerate(rows)]
    return {(row, place): float(value) for row, place, value in zip(rows, places, values, strict=True)}


def reference(folder: pathlib.Path, rows: Sequence[types.TrainSample]) -> dict[tuple[int, int], float]:
    """Return the same by the library's own model, each row alone with its pictures."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    values: dict[tuple[int, int], float] = {}
    for row in rows:
        seen = [Image.open(io.BytesIO(each.data)).convert("RGB") for each in row.pictures]
        pixels = processor(seen, return_tensors="pt")["pixel_values"]
        tokens, prompt_len = torch.tensor(list(row.tokens)), row.loss_mask.tobytes().index(1)
        with torch.no_grad():
            # The library knows pictures by their tokens alone: of an answer's it would want one more picture.
            embedded = model.get_input_embeddings()(tokens[None])
            features = model.get_image_features(pixels, return_dict=True).pooler_output
            for each, vectors in zip(row.pictures, features, strict=True):
                embedded[0, each.start : each.start + COUNT] = vectors
            logits = model(inputs_embeds=embedded).logits[0].log_softmax(-1)
        for place, index in enumerate(range(prompt_len, len(tokens))):
            values[row.row, place] = float(logits[index - 1, tokens[index]])
    return values


def test_packed_rows_with_pictures_get_the_logprobs_of_single_ones(folder: pathlib.Path) -> None:
    rows = rows_of_two_groups()
    batch = packed(rows)
    assert len(batch.pictures) == 3, "a group's pictures are there once"
    ours, theirs = scored(loaded(folder), batch), reference(folder, rows)
    assert ours.keys() == theirs.keys()
    assert max(abs(ours[key] - theirs[key]) for key in theirs) < 1e-5


def test_a_picture_changes_what_is_said_of_it(folder: pathlib.Path) -> None:
    rows = rows_of_two_groups()
    model = loaded(folder)
    other = [types.Picture(start=2, data=models.picture(9))]
    moved = [sample(0, "a", list(rows[0].tokens)[:8], [20, TOKEN, 22], *other)]
    gap = scored(model, packed(moved))[0, 0] - scored(model, packed(rows[:1]))[0, 0]
    assert abs(gap) > 1e-3


def test_where_a_cpu_computes_in_float32_the_tower_does_too_and_its_weights_stay(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "dtype_for_this_cpu", lambda _dtype: "float32")
    rows = rows_of_two_groups()
    model = loaded(folder, "bfloat16")
    ours, theirs = scored(model, packed(rows)), reference(folder, rows)
    assert max(abs(ours[key] - theirs[key]) for key in theirs) < 1e-4
    assert {tensor.dtype for tensor in model.named_tensors().values() if tensor.is_floating_point()} == {
        torch.bfloat16, *(buffer.dtype for buffer in model.lm.buffers() if buffer.is_floating_point())
    }  # fmt: skip


def test_a_picture_where_the_row_has_other_tokens_is_refused(folder: pathlib.Path) -> None:
    model = loaded(folder)
    for start in (1, 6):
        wrong = [sample(0, "a", [10, 11, *[TOKEN] * COUNT], [20], types.Picture(start=start, data=models.picture()))]
        with pytest.raises(errors.WireError, match="where the row has other tokens"):
            scored(model, packed(wrong))
    broken = [sample(0, "a", [*[TOKEN] * COUNT], [20], types.Picture(start=0, data=b"no picture"))]
    with pytest.raises(errors.WireError, match="is no picture"):
        scored(model, packed(broken))


def test_only_the_text_model_is_trained(folder: pathlib.Path) -> None:
    model = loaded(folder)
    trained = model.trained_names()
    assert trained
    assert all("language_model" in name for name in trained)
    tensors = batch_tensors.to_tensors(packed(rows_of_two_groups()), CPU)
    values, *_ = model(*tensors.inputs)
    values.sum().backward()
    assert {name for name, each in model.lm.named_parameters() if each.grad is not None} == set(trained)


class _Alone:
    """A model on this process alone, for the self-test."""

    def __init__(self, model: policy.Policy) -> None:
        self._policy, self.model = model, model.facts

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        with torch.no_grad():
            return self._policy(
                tensors.tokens, tensors.position_ids, tensors.plan, tensors.predictors, tensors.targets
            )[0]

    def score_plainly(self, row: selftest.Row) -> torch.Tensor:
        with self._policy.plain(), torch.no_grad():
            return self._policy(row.tokens, row.position_ids, None, row.predictors, row.targets)[0]

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)


def test_the_self_test_passes_and_leaves_the_tower_as_it_was(folder: pathlib.Path) -> None:
    model = loaded(folder)
    rows = rows_of_two_groups()
    before = scored(model, packed(rows))
    alone = _Alone(model)
    selftest.check(alone, alone, device=CPU, longest=64, field="spec.model.name", name="tiny", clock=FakeClock())
    assert scored(model, packed(rows)) == before


def test_what_is_exported_is_what_the_files_held(folder: pathlib.Path) -> None:
    layout, _, data = local_weights.initial_version(folder, "job", "bfloat16")
    model = loaded(folder, "bfloat16")
    tensors = model.named_tensors()
    names = loading.SavedNames(model.lm, tensors)
    assert names.problem(layout, model.trained_names()) == ""
    found: dict[str, bytes] = {}
    for saved in layout.tensors:
        for name, part in names.parts(names.source(saved.name), tensors[names.source(saved.name)].detach()).items():
            found[name] = part.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert any("vision_tower" in name for name in found)
    for each in layout.tensors:
        assert found[each.name] == bytes(data[each.offset : each.offset + each.length]), each.name


def test_the_number_of_tokens_is_that_of_the_librarys_processor(folder: pathlib.Path) -> None:
    tokens = vision.tokens_of(families.read(folder))
    assert tokens == vision.PictureTokens(token_id=TOKEN, count=COUNT)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    made = processor(text=f"a{models.PICTURE_TOKEN}b", images=[Image.open(io.BytesIO(models.picture()))])
    assert list(made["input_ids"][0]).count(TOKEN) == COUNT


@pytest.mark.parametrize(
    ("make", "columns", "said"),
    [
        (models.make_tiny_llava, {}, "it reads pictures .* and no source of spec.data.train has any"),
        (models.make_tiny_llama, {"images": "images"}, "it reads no pictures .* take a model of type llava"),
    ],
)
def test_pictures_and_a_model_that_reads_them_come_together(
    make: Callable[..., pathlib.Path], columns: dict[str, str], said: str, tmp_path: pathlib.Path
) -> None:
    train = [{**SHOWN[0], "columns": columns}]
    with pytest.raises(errors.ManifestError, match=said):
        loading.load_model(make(tmp_path), make_spec({"data.train": train}), CPU)
