"""How grading processes and candidate programs are started, confined, watched and ended.

Grading workers: a process and group of their own, killed as a whole; no_new_privs; rlimits (address space, CPU, no file
content but that of repositories whose tests run, no core, few descriptors); death with the parent; closed descriptors;
an environment of a fixed list.
Programs of the policy: the same for each run, and what `programs.py` says. Isolation level `confined`
(`confinement/profile.py` works it out, `processes/enter.py` applies it) adds Landlock rules and a system-call filter;
level `none` adds nothing. NOT covered: Landlock and the filter for grading workers themselves, in which no text of the
policy is ever run.
The door: `run` runs one `Program`, or the `Suite` of tests of a repository that `laid_out` wrote, within `Limits`, and
returns a `Run`. Graders use nothing else; environments of agents have `shell.Place` in addition. Rooms: `confinement`
(what a program may do, as data), `processes` (how they are started and ended) and `requests` (what a program must ask
for); each uses those before it alone.
"""

from rljob_workers.verifier.sandbox.processes.packages import of as packages_of
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError
from rljob_workers.verifier.sandbox.programs import Limits, Program, Run, run
from rljob_workers.verifier.sandbox.repository import Suite, harness, laid_out

__all__ = ["CannotRunError", "Limits", "Program", "Run", "Suite", "harness", "laid_out", "packages_of", "run"]
