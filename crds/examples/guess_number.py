"""A user's own environment, as docs/user_code.md explains it: guess a number between 1 and 9, with a hint per try."""

from collections.abc import Mapping

Step = tuple[str, float, bool, bool, Mapping[str, object]]


class GuessNumber:
    """One episode: at most `tries` guesses. The record's answer is the number."""

    def __init__(self, config: Mapping[str, object]) -> None:
        """`config` is spec.workflow.config."""
        self.left = int(str(config.get("tries", 3)))
        self.number = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, Mapping[str, object]]:
        """Start; `options` is the record. Nothing here is random, so the seed is not used."""
        del seed
        self.number = int(str((options or {})["answer"]))
        return "I think of a number from 1 to 9. Say one digit.", {}

    async def step(self, action: str) -> Step:
        """Compare the first digit of the answer with the number."""
        self.left -= 1
        guess = next((int(character) for character in action if character in "123456789"), 0)
        right = guess == self.number
        hint = "Larger." if guess < self.number else "Smaller."
        return hint, float(right), right or self.left == 0, False, {}

    async def aclose(self) -> None:
        """There is nothing to free."""
