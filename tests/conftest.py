"""What every test relies on: processes that tests start can import the fakes, too."""

import os
import pathlib

TESTS = str(pathlib.Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))
