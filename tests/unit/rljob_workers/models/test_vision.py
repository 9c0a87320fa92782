"""How a model reads pictures, by its config.json alone."""

from typing import Any

import pytest

from rljob_api import errors
from rljob_workers.models import families, vision

SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
TEXT = {"model_type": "llama", "vocab_size": 32064}
TOKENS = vision.PictureTokens(token_id=7, count=3)


def llava(**changes: object) -> dict[str, Any]:
    return {"model_type": "llava", "vision_config": CLIP, "text_config": TEXT, "image_token_index": 32000, **changes}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (llava(), 576),
        (llava(vision_feature_select_strategy="full"), 577),
        (llava(vision_config=SIGLIP, vision_feature_select_strategy="full"), 729),
    ],
)
def test_a_picture_has_as_many_tokens_as_its_tower_makes_vectors(config: dict[str, Any], count: int) -> None:
    assert vision.tokens_of(config) == vision.PictureTokens(token_id=32000, count=count)


def test_a_text_model_has_none() -> None:
    assert vision.tokens_of(TEXT) is None
    assert vision.text_config(TEXT) == TEXT
    assert vision.text_config(llava()) == TEXT


def test_ids_are_expanded_for_the_trainer_and_collapsed_for_engines() -> None:
    expanded = TOKENS.expanded([1, 7, 2, 7], 2, "record a of train")
    assert expanded == (1, 7, 7, 7, 2, 7, 7, 7)
    assert TOKENS.starts(expanded, 2) == (1, 5)
    assert TOKENS.collapsed(expanded, 2) == (1, 7, 2, 7)
    # What was sampled is no picture, whatever it is.
    assert TOKENS.collapsed((*expanded, 9, 7, 7, 8), 2) == (1, 7, 2, 7, 9, 7, 7, 8)
    assert TOKENS.expanded([1, 2], 0, "record a of train") == (1, 2)


def test_pictures_side_by_side_are_two() -> None:
    expanded = TOKENS.expanded([7, 7, 1], 2, "record a of train")
    assert TOKENS.starts(expanded, 2) == (0, 3)
    assert TOKENS.collapsed(expanded, 2) == (7, 7, 1)


@pytest.mark.parametrize(("ids", "pictures"), [([1, 7], 0), ([1], 1), ([7, 7], 1)])
def test_a_text_that_spells_the_token_is_refused(ids: list[int], pictures: int) -> None:
    with pytest.raises(errors.DataError, match=r"record a of train: the prompt has \d times the token .* \d pictures"):
        TOKENS.expanded(ids, pictures, "record a of train")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (llava(vision_config={"model_type": "pixtral"}), "its tower is 'pixtral', and only siglip_vision_model"),
        (llava(vision_feature_layer=[-2, -5]), "it reads several layers of its tower"),
        (llava(text_config={"model_type": "vicuna"}), "its text model is of type vicuna"),
        (llava(text_config={"model_type": "mamba2"}), "layers with a state that runs along the row"),
        ({"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": TEXT}, ""),
        ({"model_type": "qwen2_5_vl", "vision_config": SIGLIP, "text_config": TEXT}, "with pictures one of llava"),
    ],
)
def test_models_that_were_not_tested_with_pictures_are_refused(config: dict[str, Any], said: str) -> None:
    problems = families.refusals(config, longest=64)
    assert any(said in problem for problem in problems) if said else problems == []


def test_a_llava_of_a_tested_text_model_is_not_refused() -> None:
    assert families.refusals(llava(), longest=64) == []
    assert families.is_tested(llava())
