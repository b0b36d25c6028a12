"""One contract class per protocol; every back-end runs the whole of it."""

import pytest

for _part in ("steps", "filter", "derived", "admin", "session", "branch", "edge"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}_contract")
