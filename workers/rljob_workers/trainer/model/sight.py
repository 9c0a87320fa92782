"""What a model reads in the place of a picture's tokens: the vectors that its tower and projection make of the picture.

Both are frozen. So the engine may keep what it computed of a picture from one version to the next, as it does, and here
no gradient leaves the text model. They travel in each version all the same, unchanged, as the files have them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image

from rljob_api import errors, types
from rljob_workers.data import pictures
from rljob_workers.models import vision

# From a picture to what the tower takes: [1, channels, height, width], float32.
Pixels = Callable[[Image.Image], torch.Tensor]


def freeze(lm: Any) -> None:
    """Let only the text model of a model with pictures be trained, in place."""
    for part in _frozen_parts(lm):
        part.requires_grad_(False)


def _frozen_parts(lm: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    return lm.base_model.vision_tower, lm.base_model.multi_modal_projector


class Sight:
    """Puts pictures among the embeddings of tokens."""

    def __init__(self, lm: Any, pixels: Pixels) -> None:
        tokens = vision.tokens_of(lm.config.to_dict())
        assert tokens is not None, "a model without pictures has no sight"
        self._lm, self._pixels, self._tokens = lm, pixels, tokens

    def embeddings(self, tokens: torch.Tensor, shown: Sequence[types.Picture], *, dtype: torch.dtype) -> torch.Tensor:
        """tokens [1, T] -> embeddings [1, T, h], pictures in their places. dtype: the tower computes in it.

        Raises WireError where the tokens at the place of a picture do not stand for one.
        """
        embedded: torch.Tensor = self._lm.get_input_embeddings()(tokens)
        if not shown:
            return embedded
        starts = torch.tensor([picture.start for picture in shown], device=tokens.device)
        places = (starts[:, None] + torch.arange(self._tokens.count, device=tokens.device)).reshape(-1)
        inside = int(places.max()) < tokens.shape[1]
        if not inside or bool((tokens[0, places] != self._tokens.token_id).any()):
            raise errors.WireError("a picture begins where the row has other tokens")
        features = self.features([picture.data for picture in shown], dtype=dtype, device=tokens.device)
        return embedded.index_copy(1, places, features.flatten(0, 1)[None].to(embedded.dtype))

    def features(self, files: Sequence[bytes], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the vectors of each picture [pictures, tokens, h], without gradient. Raises WireError for a file that
        is no picture: it was one when it was read.
        """
        # Of a group that is divided, and of the epochs of a step, the same ones come again; here each is computed once.
        distinct = list(dict.fromkeys(files))
        try:
            decoded = [pictures.decode(file, "a picture of a batch") for file in distinct]
        except errors.DataError as error:
            raise errors.WireError(str(error)) from error
        pixels = torch.cat([self._pixels(picture) for picture in decoded]).to(device, dtype)
        with torch.no_grad():
            vectors = torch.stack(list(self._see(pixels, dtype)))
        if vectors.shape[1] != self._tokens.count:
            raise errors.WireError(f"the tower makes {vectors.shape[1]} vectors of a picture, not {self._tokens.count}")
        return vectors[[distinct.index(file) for file in files]]

    def _see(self, pixels: torch.Tensor, dtype: torch.dtype) -> Sequence[torch.Tensor]:
        base, narrow = self._lm.base_model, {}
        # Where a CPU computes in float32 the weights stay what is served, and are widened for the moment.
        for part in _frozen_parts(self._lm):
            for parameter in part.parameters():
                if parameter.dtype != dtype:
                    narrow[parameter], parameter.data = parameter.data, parameter.data.to(dtype)
        try:
            features: Sequence[torch.Tensor] = base.get_image_features(
                pixel_values=pixels, return_dict=True
            ).pooler_output
        finally:
            for parameter, data in narrow.items():
                parameter.data = data
        return features
