"""How long fuzz tests look: seconds in a pipeline, hours with `RLJOB_FUZZ_EXAMPLES=1000000`."""

import os

import hypothesis

EXAMPLES = int(os.environ.get("RLJOB_FUZZ_EXAMPLES", "50"))
# Of a whole test: a search of hours ends by its number of examples.
TIMEOUT_S = 300.0 + 0.1 * EXAMPLES
# No deadline, and no limit to the making of examples: both would measure the machine, which hours of this share with
# other work. What must be fast has a test of its own.
settings = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
