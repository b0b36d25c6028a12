"""What every StepStore and SessionBackend promises, run in full on every back-end.

Subclass `StepStoreContract` and give it two fixtures: `store`, an empty store, and `other`, an
empty store of another namespace, beside the first where the back-end can do that.
"""

from __future__ import annotations

from conformance.admin_contract import AdminContract
from conformance.branch_contract import BranchContract
from conformance.derived_contract import DerivedContract, RunContract
from conformance.filter_contract import FilterContract
from conformance.revocation_contract import RevocationContract
from conformance.session_contract import SessionContract
from conformance.steps_contract import StepsContract


class StepStoreContract(
    StepsContract,
    FilterContract,
    RunContract,
    DerivedContract,
    SessionContract,
    BranchContract,
    RevocationContract,
    AdminContract,
):
    """All of it."""
