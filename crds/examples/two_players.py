"""Two players of one policy, each with a reward of its own (docs/user_code.md): one says a number as a sum, the other
hears nothing but the sum and says the number.
"""

import re
from collections.abc import Mapping

import httpx

HINTS = "12 = 5 + 7\n46 = 40 + 6\n67 = 58 + 9\n91 = 90 + 1\n"
SUMS = "12 + 7 = 19\n46 + 31 = 77\n58 + 9 = 67\n24 + 67 = 91\n"


class HintAndGuess:
    """One episode: a hint, and a guess if there is something to guess from. The record's answer is the number.

    hint    half for a sum of two numbers, a quarter if it is the number, a quarter if the guess is right
    guess   1 for what the hint adds up to, whatever the number was: its player is not blamed for a wrong hint

    Both earn about as much at first. All calls of a group share a baseline, so that a player who hardly ever earns
    anything would be driven away from whatever it says.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """`config` is spec.workflow.config; the game has no options."""

    async def run(
        self, *, data: Mapping[str, object], base_url: str, http_client: httpx.AsyncClient, api_key: str
    ) -> Mapping[str, float]:
        """Play, and return each player's reward by the id of its call."""

        async def ask(prompt: str) -> tuple[str, str]:
            answer = await http_client.post(
                f"{base_url}/completions",
                json={"model": "policy", "prompt": prompt},
                headers={"Authorization": f"Bearer {api_key}"},
            )
            answer.raise_for_status()
            body = answer.json()
            return body["id"], body["choices"][0]["text"].partition("\n")[0]

        number = int(str(data["answer"]))
        hint_call, hint = await ask(f"{HINTS}{number} = ")
        terms = numbers_of(hint)
        if terms is None:
            return {hint_call: 0.0}
        guess_call, guess = await ask(f"{SUMS}{terms[0]} + {terms[1]} = ")
        return {
            hint_call: 0.5 + 0.25 * (sum(terms) == number) + 0.25 * (guess == str(number)),
            guess_call: float(guess == str(sum(terms))),
        }


def numbers_of(hint: str) -> tuple[int, int] | None:
    """Return the two numbers, from 1 to 99, of a hint; None of any other text."""
    match = re.fullmatch(r"([1-9]\d?) \+ ([1-9]\d?)", hint)
    return None if match is None else (int(match[1]), int(match[2]))
