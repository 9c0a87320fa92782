"""`rljob version`."""

import rljob_api


def version() -> int:
    """Print the version."""
    print(f"rljob {rljob_api.__version__}")
    return 0
