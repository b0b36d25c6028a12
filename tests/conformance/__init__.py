"""Contracts of branches, derived data, revocations, prompts and edges; every back-end runs all.

Those of steps, runs, filters, sessions and administration are in the package, in
`hybridagi_steps.testing.conformance`.
"""

import pytest

for _part in ("derived", "branch", "revocation", "prompt", "edge"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}_contract")
