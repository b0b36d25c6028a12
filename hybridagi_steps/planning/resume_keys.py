"""How a run goes on under its key: the names of what it keeps in a queue, and its rounds.

A key belongs to one requirement, plan and workspace. A run that was cut short goes on in the round
it was in. One that failed or was cancelled is tried again in a round of its own: steps that had
succeeded are taken as they were, all others get new attempts. What was merged counts only until the
workspace is rolled back. Names cannot collide: their parts are joined by a letter that none of them
holds, and the second part says what is named. Where things are kept is the dispatcher's business.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.planning.worker import Dispatcher


class Resuming:
    """What one run keeps, and what it finds of the time before.

    Args:
        dispatcher: Keeps it.
        key: Names the run.
    """

    def __init__(self, dispatcher: Dispatcher, key: str) -> None:
        self.dispatcher, self.key = dispatcher, key
        self.round = 0
        self._run = quote(key, safe="")
        self._before: dict[str, int] = {}
        self._succeeded: dict[str, int] = {}

    async def claim(self, **about: str) -> None:
        """Bind the key to what the run is about."""

        async def said() -> str:
            return json.dumps(about)

        known = json.loads(await self.dispatcher.remember(f"{self._run}:about", said))
        other = [name for name in about if known.get(name) != about[name]]
        if other:
            raise InvalidSettingError(
                f"the key {self.key!r} belongs to another run: it had another "
                f"{', '.join(other)}. Use another key; nothing was run."
            )

    async def open(self) -> None:
        """Find out which round this is, and what had succeeded before it."""
        while (ended := await self.dispatcher.known(self._in_round("ended"))) is not None:
            self._before = json.loads(ended)
            self.round += 1

    async def end_round(self) -> None:
        """End a round that did not succeed, so that the same key begins another one."""

        async def succeeded() -> str:
            return json.dumps(self._succeeded)

        await self.dispatcher.remember(self._in_round("ended"), succeeded)

    def round_of(self, work: str) -> int:
        """Return the round whose attempts of some work count."""
        return self._before.get(work, self.round)

    def succeeded(self, work: str, in_round: int) -> None:
        """Note that some work succeeded."""
        self._succeeded[work] = in_round

    def snapshot(self, rollback_id: str) -> str:
        """Name the snapshot that was taken after a rollback, or before there was one."""
        return f"{self._run}:snapshot:{rollback_id}"

    def plan(self) -> str:
        """Name the plan."""
        return f"{self._run}:plan"

    def replan(self, number: int) -> str:
        """Name a plan that was made after failures."""
        return self._in_round(f"replan:{number}")

    def attempt(self, step_id: str, in_round: int, number: int) -> str:
        """Name an attempt of a step."""
        return f"{self._run}:step:{in_round}:{step_id}:{number}"

    def merge(self, attempt: str, rollback_id: str) -> str:
        """Name the merge of what an attempt changed, after a rollback or before there was one."""
        return f"{attempt}:merged:{rollback_id}"

    def _in_round(self, name: str) -> str:
        return f"{self._run}:round:{self.round}:{name}"


def work_of(requirement: str, step: PlanStep, seen: dict[str, Any]) -> str:
    """Return what tells a step's work from other work: the step itself and all that it sees."""
    data = [requirement, step.model_dump(mode="json"), seen]
    text = json.dumps(data, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
