"""A process that holds answers, and another of the same user that looks into it where no Landlock is in the way."""

import os
import subprocess
import sys

import pytest

# Memory is not tried: some machines close that by a rule of their own.
# Without capabilities both, so that the kernel's word on the one is all that keeps the other out.
HOLDS = """
import sys
from rljob_workers.verifier.sandbox.processes import confine, enter
enter._drop_capabilities()
if sys.argv[1] == "hidden":
    confine.hide()
print("ready", flush=True)
sys.stdin.read()
"""
LOOKS = """
import sys
from rljob_workers.verifier.sandbox.processes import enter
enter._drop_capabilities()
for file in ("environ", "fd/0"):
    try:
        open(f"/proc/{sys.argv[1]}/{file}", "rb").close()
        print(file, "open")
    except PermissionError:
        print(file, "closed")
"""


@pytest.mark.covers("security")
@pytest.mark.parametrize(("how", "found"), [("hidden", "closed"), ("as it is", "open")])
def test_hidden_process_is_closed_to_others_of_its_user(how: str, found: str) -> None:
    environment = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        looked = subprocess.run(
            [sys.executable, "-c", LOOKS, str(holder.pid)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            check=True,
        )
        holder.communicate("")
    assert looked.stdout.splitlines() == [f"environ {found}", f"fd/0 {found}"]
