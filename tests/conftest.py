"""What every test relies on: processes that tests start can import the fakes, too; properties have no time limit."""

import os
import pathlib

import hypothesis

TESTS = str(pathlib.Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))

# A busy machine falsifies no property; hypothesis's own profile for CI stays what the others come from.
hypothesis.settings.register_profile(
    "patient",
    parent=hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")
