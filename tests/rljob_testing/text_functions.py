"""What reads or rewrites an answer's text: the functions that model output meets first, by name."""

from collections.abc import Callable, Mapping

from rljob_workers.verifier.graders.areal import extraction, normalization
from rljob_workers.verifier.graders.code import blocks
from rljob_workers.verifier.graders.math import expressions, forms, glyphs, spans, units
from rljob_workers.verifier.graders.math import words as number_phrases
from rljob_workers.verifier.graders.oat import extraction as oat_extract
from rljob_workers.verifier.graders.repository import answer_files
from rljob_workers.verifier.graders.symbolic import reader

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
    "areal answer": lambda text: extraction.answer_of(text, compat=False),
    "areal answer compat": lambda text: extraction.answer_of(text, compat=True),
    "areal gold": lambda text: extraction.gold_of(text, compat=True),
    "areal text compat": normalization.compat,
    "form": forms.read,
    "glyphs": glyphs.plain,
    "group commas": expressions.without_group_commas,
    "unit": units.read,
    "number phrase": number_phrases.value,
    "matrices": normalization.matrices,
    "layout": normalization.layout,
    "short fractions": normalization.short_fractions,
    "number words": lambda text: normalization.to_digits(text),
    "reader": reader.read,
    "blocks": blocks.blocks,
    "language of a block": blocks.language,
    "programs": lambda text: blocks.programs_of(text, compat=False),
    "programs compat": lambda text: blocks.programs_of(text, compat=True),
    "files": answer_files.files_of,
}
