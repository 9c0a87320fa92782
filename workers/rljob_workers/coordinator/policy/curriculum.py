"""Which prompts an epoch leaves out of those after it: the ones that it found easiest. Pure; `queue.py` records it.

Source: AReaL's data set filter; workflow reference 6.2.
"""

import math
from collections.abc import Mapping

from rljob_api import roles

# A prompt's source and its place there.
Prompt = tuple[str, int]
_ROUNDING = 1e-9


def left_out(scores: Mapping[Prompt, float], *, num_drawn: int, config: roles.CurriculumConfig) -> list[Prompt]:
    """Return the prompts with a score above the threshold, highest first, at most the fraction of `num_drawn` and never
    all of them. scores: mean raw reward in the epoch by prompt; a prompt without one stays. Equal scores: in order.
    """
    easy = sorted((prompt for prompt in scores if scores[prompt] > config.threshold), key=lambda p: (-scores[p], p))
    most = min(math.floor(num_drawn * config.max_fraction + _ROUNDING), num_drawn - 1)
    return easy[: max(0, most)]
