"""Can a record be graded at all? Pure; shared by the loader (before the job starts) and the verifier (on each call).

A missing, empty or mistyped gold is an error that names the key, never a reward of zero.
"""

import json
from collections.abc import Callable, Mapping

from rljob_api import errors

ANSWER = "answer"
METADATA = "metadata"
SOURCE_DATASET = "source_dataset"

_EVALUATES = "its scorer hands the completion to Python's eval"
_SYMPIFIES = "its scorer hands the completion to SymPy's text parser, which evaluates Python"

# reasoning-gym 0.1.x datasets whose score_answer would evaluate text that the policy wrote.
REFUSED_DATASETS: Mapping[str, str] = {
    "binary_matrix": _EVALUATES,
    "n_queens": _EVALUATES,
    "spiral_matrix": _EVALUATES,
    "string_insertion": _EVALUATES,
    "countdown": _SYMPIFIES,
    "intermediate_integration": _SYMPIFIES,
    "polynomial_multiplication": _SYMPIFIES,
    "puzzle24": _SYMPIFIES,
    "simple_integration": _SYMPIFIES,
    "composite": "its records carry the name of the inner dataset, which is what scores them",
}

# Datasets whose score_answer was read: it compares text, numbers, JSON or parses with a grammar of its own.
_SCORED = """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
    bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip
    color_cube_rotation complex_arithmetic count_bits count_primes course_schedule cryptarithm decimal_arithmetic
    decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki
    game_of_life game_of_life_halting gcd graph_color group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu
    knight_swap knights_knaves largest_island lcm leg_counting letter_counting letter_jumble list_functions
    mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering number_format
    number_sequence number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
    pool_matrix power_function prime_factorization products propositional_logic quantum_lock ransom_note rearc
    rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference sentence_reordering
    shortest_path simple_equations simple_geometry sokoban spell_backward string_manipulation string_splitting
    string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
    word_sequence_reversal word_sorting zebra_puzzles
"""
SCORED_DATASETS = frozenset(_SCORED.split())


def check_gold(grader_type: str, columns: Mapping[str, object]) -> None:
    """Raise DataError, naming the key, if no completion could be graded against this record by that grader.

    A grader type without an own rule needs a non-empty `answer`.
    """
    _CHECKS.get(grader_type, gold_texts)(columns)


def gold_texts(columns: Mapping[str, object]) -> tuple[str, ...]:
    """Return the gold answers as trimmed text: one, or any of a list. 27.0 becomes "27.0". Raises DataError."""
    if ANSWER not in columns:
        raise errors.DataError(f"the record has no {ANSWER!r}; it has {', '.join(sorted(columns)) or 'no columns'}")
    value = columns[ANSWER]
    members = value if isinstance(value, list) else [value]
    if not members:
        raise errors.DataError(f"{ANSWER!r} is an empty list")
    return tuple(_text(member) for member in members)


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise errors.DataError(
            f"{ANSWER!r} holds a {type(value).__name__}, but must be text, a number or a list of these"
        )
    text = str(value).strip()
    if not text:
        raise errors.DataError(f"{ANSWER!r} is empty")
    return text


def gym_metadata(columns: Mapping[str, object]) -> Mapping[str, object]:
    """Return a reasoning-gym record's metadata, given as an object or as its JSON text. Raises DataError."""
    value = columns.get(METADATA)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise errors.DataError(f"{METADATA!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise errors.DataError(f"a reasoning_gym record needs {METADATA!r}, an object, not {type(value).__name__}")
    return value


def gym_dataset(columns: Mapping[str, object]) -> str:
    """Return the name of the dataset that scores this record. Raises DataError if it is missing, unknown or refused."""
    name = gym_metadata(columns).get(SOURCE_DATASET)
    if not isinstance(name, str) or not name:
        raise errors.DataError(f"'{METADATA}.{SOURCE_DATASET}' must name the dataset, not {name!r}")
    if name in REFUSED_DATASETS:
        raise errors.DataError(f"'{METADATA}.{SOURCE_DATASET}' is {name!r}, which is refused: {REFUSED_DATASETS[name]}")
    if name not in SCORED_DATASETS:
        raise errors.DataError(
            f"'{METADATA}.{SOURCE_DATASET}' is {name!r}, whose scorer has not been reviewed; refused"
        )
    return name


def _check_gym(columns: Mapping[str, object]) -> None:
    gym_dataset(columns)
    # Some datasets have many right answers and no single gold: null is legal there, a missing key is not.
    if ANSWER not in columns:
        raise errors.DataError(f"the record has no {ANSWER!r}")


_CHECKS: Mapping[str, Callable[[Mapping[str, object]], object]] = {"reasoning_gym": _check_gym}
