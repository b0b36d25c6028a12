"""What every StepStore and SessionStore promises, run in full on every back-end.

Subclass `StepStoreContract`, or `WholeContract`, and say in `open_store` how a store is opened; or
give it two fixtures: `store`, an empty store, and `other`, an empty store of another namespace,
beside the first where the back-end can do that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conformance.admin_contract import AdminContract
from conformance.branch_contract import BranchContract
from conformance.derived_contract import DerivedContract
from conformance.filter_contract import FilterContract
from conformance.listing_contract import ListingContract
from conformance.message_contract import MessageIndexContract, SessionFollowerContract
from conformance.owner_contract import OwnerContract
from conformance.prompt_contract import PromptContract
from conformance.revocation_contract import RevocationContract
from conformance.samples import SessionStepStore
from conformance.session_contract import SessionContract
from conformance.steps_contract import RunContract, StepsContract


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
    """What a memory needs of a back-end."""

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


class WholeContract(
    StepStoreContract,
    DerivedContract,
    BranchContract,
    RevocationContract,
    PromptContract,
    ListingContract,
):
    """The same, and branches, derived data, revocations, prompts and pages of listings."""
