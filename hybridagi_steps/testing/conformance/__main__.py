"""Runs the contracts on the store behind an address: `python -m … ADDRESS`; prints a report.

Every test works in namespaces of its own and leaves them behind: name a scratch address.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from hybridagi_steps.errors import StepsError
from hybridagi_steps.stores import open_store
from hybridagi_steps.testing.conformance import StepStoreContract
from hybridagi_steps.testing.conformance.samples import SessionStepStore


class TestAddress(StepStoreContract):
    """The contracts, on a store that an address names."""

    address: str

    @pytest.fixture(autouse=True)
    def has_an_address(self, address: str) -> None:
        """Take the address from the command line; only memory is no place that two can share."""
        self.address, self.one_file = address, address != ":memory:"

    def open_store(self, folder: Path, namespace: str) -> SessionStepStore:  # noqa: ARG002
        """Open an empty store, whatever the tests before have left at the address."""
        return cast(
            "SessionStepStore",
            open_store(self.address, namespace=f"{namespace} {uuid4()}", durability="normal"),
        )


class _Report:
    """A pytest plugin that knows the address and counts what each contract's tests came to."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._contracts: dict[str, str] = {}
        self._failed: set[str] = set()

    @pytest.fixture
    def address(self) -> str:
        return self._address

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        for item in items:
            kept_by = (
                kind for kind in StepStoreContract.__bases__ if item.originalname in vars(kind)
            )
            self._contracts[item.nodeid] = next(kept_by).__name__

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def lines(self) -> list[str]:
        """Return a line for each contract."""
        tests = Counter(self._contracts.values())
        failed = Counter(self._contracts[test] for test in self._failed)
        return [
            f"{'FAILED' if failed[name] else 'passed'}  {name}: {count - failed[name]} of {count}"
            for name, count in sorted(tests.items())
        ]


def main(arguments: list[str] | None = None) -> int:
    """Run the contracts; return 0 when all are kept, 1 when one is not, 2 without a store."""
    parser = argparse.ArgumentParser(prog="python -m hybridagi_steps.testing.conformance")
    parser.add_argument(
        "address", help="a scratch address: a new file, or SCHEME://… of a back-end"
    )
    address: str = parser.parse_args(arguments).address
    try:
        open_store(address).close()
    except StepsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    report = _Report(address)
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:warnings", "-c", os.devnull]
    code = pytest.main([__file__, *options], plugins=[report])
    sys.stdout.write("".join(f"{line}\n" for line in report.lines()))
    return int(code != pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
