"""Conformance kit: the contracts that every step store keeps, to be run on a back-end of one's own.

Subclass `StepStoreContract` in a test file and say in `open_store` how a store is opened. Or run
`python -m hybridagi_steps.testing.conformance ADDRESS` on a back-end that serves addresses.

The contracts of steps, runs, filters, sessions, messages and administration are here. Those of
branches, derived data and revocations are in this project's own tests, `tests/conformance`.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hybridagi_steps.testing.conformance.samples import SessionStepStore

for _part in ("steps", "filter", "session", "owner", "admin", "message"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}_contract")

from hybridagi_steps.testing.conformance.admin_contract import AdminContract  # noqa: E402
from hybridagi_steps.testing.conformance.filter_contract import FilterContract  # noqa: E402
from hybridagi_steps.testing.conformance.message_contract import (  # noqa: E402
    MessageIndexContract,
    SessionFollowerContract,
)
from hybridagi_steps.testing.conformance.owner_contract import OwnerContract  # noqa: E402
from hybridagi_steps.testing.conformance.session_contract import SessionContract  # noqa: E402
from hybridagi_steps.testing.conformance.steps_contract import RunContract, StepsContract  # noqa: E402

__all__ = [
    "AdminContract",
    "FilterContract",
    "MessageIndexContract",
    "OwnerContract",
    "RunContract",
    "SessionContract",
    "SessionFollowerContract",
    "StepStoreContract",
    "StepsContract",
]


class StepStoreContract(
    StepsContract,
    RunContract,
    FilterContract,
    SessionContract,
    OwnerContract,
    MessageIndexContract,
    SessionFollowerContract,
    AdminContract,
):
    """All contracts of the kit: subclass it as `Test…`, with an `open_store`."""

    def open_store(self, folder: Path, namespace: str) -> SessionStepStore:
        """Open a store; those of one test may lie in one place, and have different namespaces.

        Args:
            folder: An empty folder of the test's own, for a back-end of files.
            namespace: Whose steps.
        """
        raise NotImplementedError("say in open_store(folder, namespace) how a store is opened.")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SessionStepStore]:
        """An empty store."""
        with closing(self.open_store(tmp_path, "default")) as store:
            yield store

    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[SessionStepStore]:
        """An empty store of another namespace."""
        with closing(self.open_store(tmp_path, "other")) as store:
            yield store
