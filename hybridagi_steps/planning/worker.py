"""StepWorker: does one attempt of a step in a copy of the workspace, and never raises.

The work is given and its outcome taken as values, so it does not matter whether a plan's own
process or another one does it. The workspace itself is only read here; who gave out the work merges
what was changed.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from typing import Any

import anyio
from anyio.to_thread import run_sync

from hybridagi_steps.errors import InvalidSettingError, LimitReachedError, StepsError
from hybridagi_steps.planning.artifacts import ArtifactTypes, checked_artifacts
from hybridagi_steps.planning.changes import Changes
from hybridagi_steps.planning.usage import OutOfBudget
from hybridagi_steps.planning.work import Executor, Finished, Outcome, Work
from hybridagi_steps.running.cancelling import own_cancellation
from hybridagi_steps.workspace.workspace import Overlay, Workspace


class StepWorker:
    """Does attempts of steps.

    Args:
        execute: Carries out an attempt.
        workspace: Where steps work; each attempt gets a copy.
        timeout_seconds: When an attempt is given up; None for never.
        artifact_types: Types that artifacts must have, by name, beside the shapes in the plan.
    """

    def __init__(
        self,
        execute: Executor,
        workspace: Workspace | None = None,
        timeout_seconds: float | None = None,
        artifact_types: ArtifactTypes | None = None,
    ) -> None:
        self.execute, self.workspace = execute, workspace
        self.timeout_seconds, self.artifact_types = timeout_seconds, artifact_types

    async def do(self, work: Work) -> Outcome:
        """Do one attempt; a cancellation alone is raised."""
        try:
            finished, changes = await self._within_time(work)
        except OutOfBudget as stop:
            return Outcome(error=stop.error, problems=work.problems)
        except SystemExit as stop:
            error = StepsError(f"the step tried to end the process: SystemExit({stop})")
            return Outcome(error=error, problems=work.problems)
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
            return await self._executed(work, None), None
        workspace, made = self.workspace, list[Overlay]()
        try:
            # A list, so that a copy that was made while this was cancelled is removed, too.
            await run_sync(lambda: made.append(workspace.overlay()))
            finished = await self._executed(work, made[0])
            return finished, await run_sync(made[0].changes)
        finally:
            with anyio.CancelScope(shield=True):
                for copy in made:
                    await run_sync(copy.close)

    async def _executed(self, work: Work, workspace: Workspace | None) -> Finished:
        """Carry out the work and pass on only what the step promised.

        Raises:
            InvalidSettingError: The executor is no coroutine function, or gave no `Finished`.
            ArtifactError: An artifact is missing or of the wrong shape.
        """
        begun: Any = self.execute(work, workspace)
        if not inspect.isawaitable(begun):
            raise InvalidSettingError(
                f"the executor gave {type(begun).__name__} at once: "
                "write it with `async def`, so that steps can run side by side."
            )
        with own_cancellation("the step"):
            finished: Any = await begun
        if not isinstance(finished, Finished):
            raise InvalidSettingError(
                f"the executor returned {type(finished).__name__}; it must return a Finished."
            )
        kept = checked_artifacts(work.step, finished.artifacts, self.artifact_types)
        return finished.model_copy(update={"artifacts": kept})
