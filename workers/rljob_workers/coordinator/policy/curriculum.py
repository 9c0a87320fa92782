"""Which prompts an epoch leaves out of those after it: the ones that it found easiest. Pure; `queue.py` records it.

Source: AReaL's data set filter; docs/design/workflows.md#s-6-2.
"""

import math
from collections.abc import Mapping

from rljob_api.manifest.data import CurriculumSpec

# A prompt's source and its place there.
Prompt = tuple[str, int]
_ROUNDING = 1e-9


def left_out(scores: Mapping[Prompt, float], *, num_drawn: int, config: CurriculumSpec) -> list[Prompt]:
    """Return the prompts with a score above the threshold, highest first, at most the fraction of `num_drawn` and never
    all of them. scores: mean raw reward in the epoch by prompt; a prompt without one stays. Equal scores: in order.
    """
    above = (prompt for prompt, score in scores.items() if score > config.filter_threshold)
    easy = sorted(above, key=lambda prompt: (-scores[prompt], prompt))
    most = min(math.floor(num_drawn * config.max_filter_percentage + _ROUNDING), num_drawn - 1)
    return easy[: max(0, most)]
