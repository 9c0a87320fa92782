"""FrozenLake of the `gymnasium` package, with texts instead of numbers: the wrappers are its own."""

import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces, wrappers

MOVES = ("left", "down", "right", "up")
ASK = "S is the start, G the goal, H a hole. Answer with one word: left, down, right or up."
TEXT = spaces.Text(1 << 16)


def move_of(answer: str) -> int:
    """Return the number of the first move that an answer names; a step to the left if it names none."""
    words = re.findall("|".join(MOVES), answer.lower())
    return MOVES.index(words[0]) if words else 0


class FrozenLake(gymnasium.Wrapper[str, str, int, int]):
    """The map is what the environment prints; the reward is its own."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` is spec.workflow.config: what `gymnasium.make` takes."""
        lake = gymnasium.make("FrozenLake-v1", render_mode="ansi", **config)
        shown = wrappers.TransformObservation(lake, lambda _: f"{lake.render()}\n{ASK}", TEXT)
        super().__init__(wrappers.TransformAction(shown, move_of, TEXT))
