"""What every StepStore and SessionStore promises, run in full on every back-end.

Subclass `WholeContract` and give it two fixtures: `store`, an empty store, and `other`, an empty
store of another namespace, beside the first where the back-end can do that.
"""

from __future__ import annotations

from conformance.branch_contract import BranchContract
from conformance.derived_contract import DerivedContract
from conformance.listing_contract import ListingContract
from conformance.prompt_contract import PromptContract
from conformance.revocation_contract import RevocationContract
from hybridagi_steps.testing.conformance import StepStoreContract


class WholeContract(
    StepStoreContract,
    DerivedContract,
    BranchContract,
    RevocationContract,
    PromptContract,
    ListingContract,
):
    """The kit that is shipped, and what stands on it."""
