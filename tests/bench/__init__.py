"""Every figure that we publish, as a row that measures both sides in the same run and prints how it was made."""

import os
import pathlib
import sys

# `python -m tests.bench.learning` and its processes find what tests share, as they do under pytest.
_TESTS = str(pathlib.Path(__file__).parents[1])
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
# Also where it is there already as a relative path, which is another folder for a process that starts elsewhere.
_FOLDERS = filter(None, [_TESTS, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(_FOLDERS))
