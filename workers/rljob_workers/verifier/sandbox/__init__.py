"""How grading processes and candidate programs are started, confined, watched and ended.

Grading workers: a process and group of their own, killed as a whole; no_new_privs; rlimits (address space, CPU, no file
content, no core, few descriptors); death with the parent; closed descriptors; an environment of a fixed list.
Programs of the policy: the same for each run, and what `programs.py` says; that is isolation level `none`.
NOT covered yet: Landlock and the seccomp filter, for either.
"""
