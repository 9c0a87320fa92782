"""Would a symbolic library meet a huge value somewhere in this prose? Pure and linear.

A library that looks for expressions in a sentence may find any run of digits, operators and LaTeX in it. Each run that
could be large (it has a power, a factorial or a long literal) must pass the screen on its own.
"""

import re

from rljob_workers.verifier.graders import brackets, screen
from rljob_workers.verifier.graders.answers import glyphs

_RUN = re.compile(r"(?:\\[A-Za-z]{1,32}|\\.|[-+*/^!()\[\]{}0-9.,%=<>$|& ]|(?<![A-Za-z])[A-Za-z]{1,2}(?![A-Za-z]))+")
_LARGE = re.compile(
    rf"[0-9A-Za-z)\]}}]\s{{0,64}}(?:!|\^|\*\*)|[0-9]{{{screen.MAX_LITERAL_DIGITS}}}|[eE][0-9]{{3}}|\\[dt]?binom"
)
_DELIMITERS = re.compile(r"\\boxed|\$|\\[()\[\]]|(?<=[0-9)}])!(?=\s*$)")


def first(text: str) -> str:
    """Return why a library may not see this text, or an empty string."""
    if "__" in text:
        return "two underscores are outside the grammar"
    if brackets.depth(text) > screen.MAX_DEPTH:
        return f"nested deeper than {screen.MAX_DEPTH}"
    for run in _RUN.finditer(glyphs.plain(text)):
        if not _LARGE.search(run.group()):
            continue
        try:
            screen.check(_balanced(_DELIMITERS.sub(" ", run.group())))
        except screen.RefusedError as refusal:
            return str(refusal)
    return ""


def _balanced(run: str) -> str:
    """Return the run with brackets added that prose closes elsewhere; their number bounds nothing here."""
    depth = missing = 0
    for char in run:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            missing, depth = missing + 1, 0
    return "(" * missing + run + ")" * depth
