"""What reads or rewrites an answer's text: the functions that model output meets first, by name."""

from collections.abc import Callable, Mapping

from rljob_workers.verifier.graders import (
    areal_extract,
    areal_text,
    code_blocks,
    fences,
    latex_text,
    number_words,
    oat_extract,
    reader,
    repository_answer,
)
from rljob_workers.verifier.graders.answers import expressions, forms, glyphs, spans, units
from rljob_workers.verifier.graders.answers import words as number_phrases

# What those look for.
_WORDS = (
    r"\boxed{ } { ( ) [ ] \frac \sqrt \text{cm} <answer> </answer> #### ``` ```python $ \( \) , . - + ^ ! _ = % 1 -7"
    " 5 cm 3 1/2 x= f(x)= \\cup \\le \\overline{3} \\{ \\} ; : to 10:30 PM \\pm"
    " ^\\circ \\$ \u221a \u2212 \u7b54\u6848\u662f"
    r" 9e9 0.5 x \pi two hundred answer is and or \begin{pmatrix} \\ & \end{pmatrix} \%"
)
WORDS = _WORDS.split()
ALL: Mapping[str, Callable[[str], object]] = {
    "find_answer": lambda text: spans.find_answer(text, boxed_only=False),
    "find_answer boxed": lambda text: spans.find_answer(text, boxed_only=True),
    "unbox": spans.unbox,
    "oat boxed": lambda text: oat_extract.boxed(text, compat=False),
    "oat tagged": lambda text: oat_extract.tagged(text, loose=True, compat=False),
    "oat tagged compat": lambda text: oat_extract.tagged(text, loose=False, compat=True),
    "areal answer": lambda text: areal_extract.answer_of(text, compat=False),
    "areal answer compat": lambda text: areal_extract.answer_of(text, compat=True),
    "areal gold": lambda text: areal_extract.gold_of(text, compat=True),
    "areal text compat": areal_text.compat,
    "form": forms.read,
    "glyphs": glyphs.plain,
    "group commas": expressions.without_group_commas,
    "unit": units.read,
    "number phrase": number_phrases.value,
    "matrices": latex_text.matrices,
    "layout": latex_text.layout,
    "short fractions": latex_text.short_fractions,
    "number words": lambda text: number_words.to_digits(text),
    "reader": reader.read,
    "blocks": fences.blocks,
    "language of a block": fences.language,
    "programs": lambda text: code_blocks.programs_of(text, compat=False),
    "programs compat": lambda text: code_blocks.programs_of(text, compat=True),
    "files": repository_answer.files_of,
}
