"""How a model reads pictures, decided from its config.json alone: which token stands for one, and how many of them.

A prompt has a picture's tokens as many times as the tower in front of the model makes vectors of a picture, and the
model reads those vectors in their place. Here: LLaVA's way, in which every picture is brought to one size, so that the
number is the same for all, and positions count tokens as in a text.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from rljob_api import errors

Config = Mapping[str, object]

# `model_type` of config.json of models that read pictures, and of the towers in them. Each is tested.
MODELS = {"llava": "LLaVA"}
TOWERS = {"siglip_vision_model": "SigLIP", "clip_vision_model": "CLIP"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PictureTokens:
    """What stands for a picture in a prompt: `count` times the token `token_id`."""

    token_id: int
    count: int

    def expanded(self, ids: Sequence[int], num_pictures: int, where: str) -> tuple[int, ...]:
        """Return the ids of a prompt with each picture's one token as many times as the model reads it.

        Raises DataError if there is not one for each picture: a text may spell it, too.
        """
        num_tokens = list(ids).count(self.token_id)
        if num_tokens != num_pictures:
            raise errors.DataError(
                f"{where}: the prompt has {num_tokens} times the token that stands for a picture ({self.token_id}), but"
                f" {num_pictures} pictures; is its text in the question, or has the chat template lost a mark?"
            )
        return tuple(token for each in ids for token in [each] * (self.count if each == self.token_id else 1))

    def starts(self, ids: Sequence[int], num_pictures: int) -> tuple[int, ...]:
        """Return where the first `num_pictures` pictures of expanded ids begin. An answer may hold the token too."""
        starts: list[int] = []
        place = 0
        for _ in range(num_pictures):
            place = list(ids).index(self.token_id, place)
            starts.append(place)
            place += self.count
        return tuple(starts)

    def collapsed(self, ids: Sequence[int], num_pictures: int) -> tuple[int, ...]:
        """Return expanded ids with one token for each of the first `num_pictures` pictures, as engines want them."""
        starts = self.starts(ids, num_pictures)
        repeated = {place for start in starts for place in range(start + 1, start + self.count)}
        return tuple(token for place, token in enumerate(ids) if place not in repeated)


def text_config(config: Config) -> Config:
    """Return the part of config.json that is of the text model; all of it where there is no other."""
    text = config.get("text_config")
    return text if isinstance(text, dict) and reads_pictures(config) else config


def reads_pictures(config: Config) -> bool:
    """Return whether the model is of a kind whose pictures are read here."""
    return config.get("model_type") in MODELS


def problem(config: Config) -> str:
    """Return why the pictures of a model of `MODELS` cannot be read, empty if they can."""
    vision = config.get("vision_config")
    tower = vision.get("model_type") if isinstance(vision, dict) else None
    if tower not in TOWERS:
        return f"its tower is {tower!r}, and only {', '.join(TOWERS)} are read"
    if not isinstance(config.get("vision_feature_layer", -2), int):
        return "it reads several layers of its tower (vision_feature_layer), and only one is read"
    return ""


def tokens_of(config: Config) -> PictureTokens | None:
    """Return what stands for a picture in the model's prompts, None for a model without pictures."""
    vision = config.get("vision_config")
    if not reads_pictures(config) or not isinstance(vision, dict):
        return None
    # Defaults are those of the library, which leaves them out of the file.
    is_clip = vision.get("model_type") == "clip_vision_model"
    size, patch = _int(vision.get("image_size"), 224), _int(vision.get("patch_size"), 32 if is_clip else 16)
    # CLIP's tower has one more vector, in front, which the strategy `default` leaves out.
    more = int(is_clip) - (config.get("vision_feature_select_strategy", "default") == "default")
    token_id = config.get("image_token_id", config.get("image_token_index"))
    return PictureTokens(token_id=_int(token_id, 32000), count=(size // patch) ** 2 + more)


def _int(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
