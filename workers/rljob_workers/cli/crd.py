"""`rljob crd`."""

from rljob_api import crd as definition


def crd() -> int:
    """Print the generated definition."""
    print(definition.text(), end="")
    return 0
