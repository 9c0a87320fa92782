"""The vocabulary of `spec`: one file per section of the manifest, nothing but fields, bounds and what they mean.

Rules that need more than one field are in `rljob_api.rules`; derived defaults in `rljob_api.effective`.
"""
