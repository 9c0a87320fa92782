"""Builders of a job's children: one kind a file, pure functions from `Inputs` to plain manifests.

Addresses, ports and folders come from the resolved configs; what differs between pods of a role comes from RLJOB_*.
"""
