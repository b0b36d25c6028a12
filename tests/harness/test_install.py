"""What each dependency weighs: shared packages are nobody's alone."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.install import parts_of, tables


def package(size: int, *needs: str) -> dict[str, Any]:
    return {"bytes": size * 1_000_000, "needs": list(needs), "version": "1"}


def test_a_package_that_two_dependencies_need_is_nobodys_alone() -> None:
    found = {
        "hybridagi-steps": package(5, "dspy-ai", "wordllama", "only-elsewhere"),
        "dspy-ai": package(0, "litellm", "numpy"),
        "litellm": package(100, "dspy-ai"),
        "wordllama": package(30, "numpy"),
        "numpy": package(50),
    }
    parts = parts_of(found)
    assert parts["dspy-ai"]["alone"] == ["dspy-ai", "litellm"]
    assert parts["wordllama"]["alone_bytes"] == 30_000_000
    assert parts["wordllama"]["bytes"] == 80_000_000
    [table] = tables({"parts": parts, "packages": found})
    assert table.rows[0][:3] == ["dspy-ai", "150.0", "3"]
    assert table.rows[-1][:3] == ["all", "185.0", "5"]
