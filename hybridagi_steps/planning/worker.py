"""StepWorker: does one attempt of a step in a copy of the workspace, and never raises.

The work is given and its outcome taken as values, so it does not matter whether a plan's own
process or another one does it. The workspace itself is only read here; who gave out the work merges
what was changed.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import anyio
from anyio.to_thread import run_sync

from hybridagi_steps.errors import LimitReachedError
from hybridagi_steps.planning.accounting import OutOfBudget
from hybridagi_steps.planning.changes import Changes
from hybridagi_steps.planning.work import Executor, Finished, Outcome, Work
from hybridagi_steps.planning.workspace import Overlay, Workspace


class StepWorker:
    """Does attempts of steps.

    Args:
        execute: Carries out an attempt.
        workspace: Where steps work; each attempt gets a copy.
        timeout_seconds: When an attempt is given up; None for never.
    """

    def __init__(
        self,
        execute: Executor,
        workspace: Workspace | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self.execute, self.workspace = execute, workspace
        self.timeout_seconds = timeout_seconds

    async def do(self, work: Work) -> Outcome:
        """Do one attempt; a cancellation alone is raised."""
        try:
            finished, changes = await self._within_time(work)
        except OutOfBudget as stop:
            return Outcome(error=stop.error, problems=work.problems)
        except Exception as error:
            return Outcome(error=error, problems=work.problems)
        return Outcome(finished, changes=changes, problems=work.problems)

    async def _within_time(self, work: Work) -> tuple[Finished, Changes | None]:
        with anyio.move_on_after(self.timeout_seconds):
            return await self._in_copy(work)
        raise LimitReachedError(
            f"the step took longer than {self.timeout_seconds:g} s", limit="timeout"
        )

    async def _in_copy(self, work: Work) -> tuple[Finished, Changes | None]:
        """Carry out the work where nothing it does reaches the workspace."""
        if self.workspace is None:
            return await self.execute(work, None), None
        workspace, made = self.workspace, list[Overlay]()
        try:
            # A list, so that a copy that was made while this was cancelled is removed, too.
            await run_sync(lambda: made.append(workspace.overlay()))
            finished = await self.execute(work, made[0])
            return finished, await run_sync(made[0].changes)
        finally:
            with anyio.CancelScope(shield=True):
                for copy in made:
                    await run_sync(copy.close)
