"""A real Kubernetes for the tests: built from Go modules, run as plain processes, torn down by pid.

Two flavours: `light` is etcd, API server and controller manager on loopback (schema, RBAC, the operator itself); `full`
adds scheduler, DNS and two nodes with containerd, in a network namespace of its own. `python -m rljob_testing.cluster`
is the same for people.
"""
