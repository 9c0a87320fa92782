"""What `make gen` writes: files of the chart and pages of the documentation, from the code that they are about."""

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
CHART = ROOT / "charts" / "rljob-operator"
