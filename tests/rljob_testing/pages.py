"""Markdown pages as code hosts show them."""

import re

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def heading_anchors(page: str) -> set[str]:
    """Return the anchors that code hosts give the headings of a page."""
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in _HEADING.findall(page)}
