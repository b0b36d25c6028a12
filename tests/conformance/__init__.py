"""One contract class per protocol; every back-end runs the whole of it."""

import pytest

pytest.register_assert_rewrite("conformance")
