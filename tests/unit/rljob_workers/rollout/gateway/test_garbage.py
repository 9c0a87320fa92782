"""In processes of their own: a collection looks at all objects of its process, and here those are torch's too."""

import json
import subprocess
import sys

SCRIPT = """
import gc, json, weakref
from rljob_workers.rollout.gateway import garbage

garbage._LEAST, garbage._COLLECTIONS_PER_COUNT = 10_000, 4
gc.disable()
class Node: pass
def ring():
    first, second = Node(), Node()
    first.next, second.next = second, first
    return first
survivors = garbage.Survivors()
survivors.watch()
kept = [ring() for _ in range(20_000)]
seen = weakref.ref(kept[7])
gc.collect()
left_out = gc.get_freeze_count()
young = len(gc.get_objects())
last = kept.pop()
alone = weakref.ref(last)
last.next.next = None
del last
freed_at_once = alone() is None
del kept
gc.collect()
missed = seen() is not None
more = []
while seen() is not None and len(more) < 100:
    more.append([ring() for _ in range(2_000)])
    for generation in [1] * 11 + [2]:
        gc.collect(generation)
print(json.dumps([left_out, young, freed_at_once, missed, len(more), gc.get_freeze_count()]))
"""


def test_survivors_are_left_out_and_garbage_among_them_is_found_once_twice_as_much_lives() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    left_out, young, freed_at_once, missed, more, left_out_then = json.loads(ran.stdout)
    assert left_out > 40_000, "two objects each, and their dictionaries where they have some"
    assert young < 1_000, "no later collection looks at them"
    assert freed_at_once, "what nothing refers to needs no collection"
    assert missed, "cycles that were left out stay for now"
    assert 0 < more < 60
    assert left_out_then < left_out + more * 4_000 * 2
