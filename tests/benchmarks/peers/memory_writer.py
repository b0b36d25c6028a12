"""Our own `StepMemory`, written to as a program would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybridagi_steps.memory import Durability, StepMemory
from tests.benchmarks.peers import StepRecord


class MemoryWriter:
    """Appends to one memory file; words and embeddings are derived by the first search."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._memory = StepMemory(folder / "steps.db", embedder="wordllama", durability=durability)
        self.settings = f"WAL, synchronous={durability.upper()}; embedded later, by the next search"

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Add steps one by one."""
        for record in records:
            self._memory.add(record.step)

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Add steps at once."""
        self._memory.add([record.step for record in records])

    def settle(self) -> None:
        """Nothing has to be done."""

    def read_run(self, run_id: str) -> int:
        """Read a run as steps."""
        return len(list(self._memory.iter_steps({"run_id": run_id})))

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()
