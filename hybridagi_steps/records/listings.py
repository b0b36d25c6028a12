"""Listings: lists that draw themselves, of hits, runs, sessions and calls of models.

They are lists: indexed, sliced, compared and passed on like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import import_module
from typing import Any, Protocol, TypeVar

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import MissingExtraError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import StepMetrics
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.run import RunTotals
from hybridagi_steps.records.store_values import RunSummary, SessionSummary

T = TypeVar("T")
_TITLE = 80
_CALLED = ("tool", "program", "purpose")


class Preformatted:
    """What a notebook shows as the text that it is."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Show the text in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"


class Lines(Preformatted, list[T]):
    """Values of any kind, each shown as the line that it is as a text."""

    def __str__(self) -> str:
        from hybridagi_steps.display.terminal import printable

        return printable("\n".join(map(str, self)) or "none")

    __repr__ = __str__


class StepHits(list[StepHit]):
    """Hits of a search, best first."""

    def with_feedback(self, feedback_on: Callable[[Sequence[str]], Mapping[str, str]]) -> StepHits:
        """Let each hit say what was said of its run, as far as that was scored."""
        scored = [hit for hit in self if hit.step.score is not None]
        said = feedback_on([str(hit.step.run_id) for hit in scored])
        for hit in scored:
            hit.feedback = said.get(str(hit.step.run_id))
        return self

    def __str__(self) -> str:
        """The hits as a table."""
        from hybridagi_steps.display.terminal import as_text, hits_table

        return as_text(hits_table([hit.shown() for hit in self])) if self else "no hits"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show the hits in a notebook."""
        from hybridagi_steps.display import hits_html

        return hits_html([hit.shown() for hit in self])


class _ReadsRuns(Protocol):
    def run_steps(self, run_id: str) -> list[AgentStep]: ...


class ListedRun(RunTotals, RunSummary):
    """A run of a listing; what it took and gave is read from its steps when it is asked for."""

    memory: _ReadsRuns

    @classmethod
    def of(cls, summary: RunSummary, memory: _ReadsRuns) -> ListedRun:
        """Return a run whose steps a memory has."""
        made = cls(*summary)
        made.memory = memory
        return made

    def list_steps(self) -> list[AgentStep]:
        """Return its steps, by hop."""
        return self.memory.run_steps(self.run_id)

    def __repr__(self) -> str:
        """The run in one line: its id, how it ended, what it was asked."""
        from hybridagi_steps.display.titles import line

        facts = [plural(self.steps, "step"), self.started_at[:16].replace("T", " ")]
        title = [line(self.title, _TITLE)] if self.title else []
        return f"<run {self.run_id} {self.status}: {', '.join([*title, *facts])}>"


class Runs(list[ListedRun]):
    """Runs, newest first.

    Args:
        found: The runs.
        next_offset: What to ask for to see more; None when these are the last.
    """

    def __init__(self, found: Iterable[ListedRun] = (), next_offset: int | None = None) -> None:
        super().__init__(found)
        self.next_offset = next_offset

    def __str__(self) -> str:
        """The runs as a table, and whether there are more."""
        from hybridagi_steps.display.terminal import as_text, runs_table

        table = as_text(runs_table([run._asdict() for run in self])) if self else "no runs"
        return "\n\n".join(filter(None, (table, self._more)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show the runs in a notebook."""
        from hybridagi_steps.display import runs_html

        more = f"<p>{self._more}</p>" if self._more else ""
        return runs_html([run._asdict() for run in self]) + more

    @property
    def _more(self) -> str:
        if self.next_offset is None:
            return ""
        return f"{len(self):,} runs; memory.runs(offset={self.next_offset}) shows more"


class LMCalls(list[LMCall]):
    """What a model saw for a step, call by call."""

    def __str__(self) -> str:
        """The messages, and what came back."""
        from hybridagi_steps.display.terminal import as_text, prompt_page

        return as_text(prompt_page(self._shown())) if self else "no prompt was kept"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show them in a notebook."""
        from hybridagi_steps.display import prompt_html

        return prompt_html(self._shown()) if self else "<p>no prompt was kept</p>"

    def _shown(self) -> list[dict[str, object]]:
        return [call.model_dump(mode="json", exclude_none=True) for call in self]


class Sessions(list[SessionSummary]):
    """Sessions, the one written last first."""

    def __str__(self) -> str:
        """The sessions as a table."""
        from hybridagi_steps.display.terminal import as_text, sessions_table

        return as_text(sessions_table([asdict(each) for each in self])) if self else "no sessions"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show the sessions in a notebook."""
        from hybridagi_steps.display import sessions_html

        return sessions_html([asdict(each) for each in self])


def steps_frame(steps: Any) -> Any:
    """Return steps as a pandas DataFrame: one row a step, what it cost in columns of its own.

    Args:
        steps: AgentSteps, or what holds them, such as `memory.find()` and `run.steps`.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise MissingExtraError("a DataFrame", "pandas", command="pip install pandas") from error
    found: Iterable[AgentStep] = getattr(steps, "steps", steps)
    rows = [
        {
            **{name: getattr(step, name) for name in _CALLED},
            **vars(step),
            **vars(step.metrics or StepMetrics()),
        }
        for step in found
    ]
    left_out = ("vector", "metrics")
    named = (*_CALLED, *AgentStep.model_fields, *StepMetrics.model_fields)
    columns = [name for name in dict.fromkeys(named) if name not in left_out]
    return pandas.DataFrame(rows, columns=columns)
