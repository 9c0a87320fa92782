"""`python -m rljob_testing.guided_fuzzing --seconds 600`: texts that reach new branches of what reads answers.

Atheris finds them, led by coverage. Exit 0 where none raised an error, took 5 seconds, needed 2 GB or was graded right
against a number that is not in it; otherwise libFuzzer leaves that text in `build/fuzzing` and says so.
`tests/unit/rljob_workers/verifier/graders/test_fuzz.py` tries the same functions with texts made by rule.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import atheris

with atheris.instrument_imports(include=["rljob_workers.verifier.graders"]):
    from rljob_api import process_config
    from rljob_testing import text_functions
    from rljob_testing.sections import section
from rljob_workers.verifier.graders import base, registry

# A prime: no formula of a few characters that does not name it comes to it.
GOLD = "982451653"
GRADERS = ("math", "exact", "areal-math", "gsm8k", "clevr_count_70k", "boxed", "answer_tag")
COMPAT = frozenset(GRADERS[2:])
_FOLDER = pathlib.Path("build/fuzzing")
_MOST_BYTES = 4096


def graders() -> Sequence[tuple[str, base.Grader]]:
    """Return those of one gold, strict and as published, each after its type."""
    rewards = [
        section(process_config.GraderConfig, name=f"{kind}-{mode}", type=kind, mode=mode)
        for kind in GRADERS
        for mode in ("Strict", *(["Compat"] if kind in COMPAT else []))
    ]
    return [
        (reward.type, grader)
        for reward, grader in zip(rewards, registry.build(rewards, registry.BUILT_IN), strict=True)
    ]


class Target:
    """One text through all of it."""

    def __init__(self) -> None:
        """Make the graders."""
        self._graders = graders()

    def __call__(self, data: bytes) -> None:
        """Try a text. Raises whatever it makes the functions raise, and AssertionError for a verdict that it bought."""
        text = data.decode("utf-8", errors="replace")
        for function in text_functions.ALL.values():
            function(text)
        if GOLD in "".join(filter(str.isdecimal, text)):
            return
        for kind, grader in self._graders:
            # The gold of gsm8k is the end of a worked solution.
            gold = f"#### {GOLD}" if kind == "gsm8k" else GOLD
            grade = grader.quick(base.Answer(prompt="", completion=text, columns={"answer": gold}))
            assert grade is None or not grade.score, f"{grader} finds {GOLD} in {text!r}"


def _escaped(word: str) -> str:
    """Return a word as libFuzzer's dictionaries write it: bytes that are not printable ASCII by number."""
    return "".join(
        f"\\x{byte:02x}" if chr(byte) in '\\"' or not 0x20 <= byte < 0x7F else chr(byte) for byte in word.encode()
    )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Look for so long; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m rljob_testing.guided_fuzzing", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--text-seconds", type=int, default=5, help="a text that takes longer is kept as well")
    arguments = parser.parse_args(argv)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    words = _FOLDER / "words.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in text_functions.WORDS))
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-timeout={arguments.text_seconds}",
        "-rss_limit_mb=2048",
        f"-max_len={_MOST_BYTES}",
        "-len_control=0",
        f"-dict={words}",
        f"-artifact_prefix={_FOLDER}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options], Target())
    atheris.Fuzz()
    raise AssertionError("libFuzzer has not ended the process")


if __name__ == "__main__":
    main()
