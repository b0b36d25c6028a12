"""Listings: lists that draw themselves, of hits, runs, sessions and calls of models.

They are lists: indexed, sliced, compared and passed on like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TypeVar

from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.store_values import RunSummary, SessionSummary

T = TypeVar("T")


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


class Runs(list[RunSummary]):
    """Runs, newest first.

    Args:
        found: The runs.
        next_offset: What to ask for to see more; None when these are the last.
    """

    def __init__(self, found: Iterable[RunSummary] = (), next_offset: int | None = None) -> None:
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
