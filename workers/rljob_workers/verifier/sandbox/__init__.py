"""How grading processes and candidate programs are started, confined, watched and ended.

Grading workers: a process and group of their own, killed as a whole; no_new_privs; rlimits (address space, CPU, no file
content but that of repositories whose tests run, no core, few descriptors); death with the parent; closed descriptors;
an environment of a fixed list.
Programs of the policy: the same for each run, and what `programs.py` says. Isolation level `confined` (`confinement.py`
works it out, `enter.py` applies it) adds Landlock rules and a system-call filter; level `none` adds nothing.
NOT covered: Landlock and the filter for grading workers themselves, in which no text of the policy is ever run.
"""
