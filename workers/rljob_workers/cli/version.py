"""`rljob version`."""

import json

import rljob_api


def version(*, as_json: bool) -> int:
    """Print the version."""
    print(json.dumps({"version": rljob_api.__version__}) if as_json else f"rljob {rljob_api.__version__}")
    return 0
