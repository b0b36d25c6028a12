"""Contracts of a step store with sessions, and of what stands on it; every back-end runs all."""

import pytest

for _part in (
    *("steps", "filter", "session", "owner", "admin", "message"),
    *("derived", "branch", "revocation", "prompt", "listing", "edge"),
):
    pytest.register_assert_rewrite(f"{__name__}.{_part}_contract")
