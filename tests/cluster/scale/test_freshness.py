"""How old reports of so many running jobs are, over one real connection each: the operator's streams and a stand-in for
all coordinators, which says the same again and again. No cluster: RLJOB_SCALE_JOBS=4000 takes a minute.
"""

import asyncio
import functools
import os
import random
import resource
import time

import pytest

from rljob_operator.coordinators import INTERVAL_S, Streams, opened
from rljob_operator.reports import Reports, Target
from rljob_testing.operator_load import standing_in
from rljob_testing.operator_stage import until

MOST_AGE_S = 10.0
# Each stream pauses twice.
LISTENED_S = 5 * INTERVAL_S


@pytest.mark.timeout(600)
async def test_reports_are_at_most_ten_seconds_old_however_many_jobs_run(chosen: int) -> None:
    if os.environ.get("CI") != "true" and "RLJOB_SCALE_JOBS" not in os.environ:
        pytest.skip("figures at scale were not asked for (RLJOB_SCALE_JOBS=200)")
    enqueued = list[str]()
    reports = Reports(enqueue=enqueued.append, now=time.time, monotonic=time.monotonic)
    connect = functools.partial(opened, credentials_of=lambda _: None, now=time.time)
    streams = Streams(reports, connect, now=time.time, rng=random.Random(0))
    with standing_in() as (_, address):
        began = time.monotonic()
        streams.keep([Target(key=f"team/{each}", uid=str(each), address=address) for each in range(chosen)])
        await until(lambda: streams.num_open == chosen, within_s=300.0)
        opened_s, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
        ages, end = list[float](), time.monotonic() + LISTENED_S
        while time.monotonic() < end:
            ages.append(reports.age_s())
            await asyncio.sleep(0.5)
        after = resource.getrusage(resource.RUSAGE_SELF)
        await streams.close()
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(
        f"\n{chosen} streams open after {opened_s:.1f} s; 99 of 100 reports at most {max(ages):.1f} s old;"
        f" {cpu_s / LISTENED_S * 1000:.0f} millicores for both ends"
    )
    assert max(ages) <= MOST_AGE_S
    assert len(enqueued) == chosen, "a run that says nothing new is looked at once"
