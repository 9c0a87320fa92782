"""How grading processes are started, confined, watched and ended.

Covered now: a process and group of its own, killed as a whole; no_new_privs; rlimits (address space, CPU, no file
writes, no core, few descriptors); death with its parent; closed descriptors; an environment of a fixed list.
NOT covered yet: Landlock, the seccomp filter, and everything that a candidate *program* would need.
"""
