"""A running plan on the terminal: a tree of its steps that changes as they begin and end.

Knows StepEvents and rich, nothing of how plans are run. When nobody watches, each step that ends is
a plain line.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from hybridagi_steps.cli.render import plain, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from hybridagi_steps.records.event import StepEvent

_LOOKS = {
    "waiting": ("·", "dim"),
    "running": ("▸", "bold"),
    "retrying": ("↻", "yellow"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "cancelled": ("■", "yellow"),
    "replaced": ("~", "dim"),
}
_MOST_LETTERS = 90


class PlanTree:
    """Shows a plan while it runs; give it every event."""

    def __init__(self, console: Console, title: str) -> None:
        from rich.live import Live

        self._title = title
        self._states: dict[str, str] = {}
        self._outcomes: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._before: dict[str, list[str]] = {}
        self._console = console
        self._live = Live(self.tree(), console=console, auto_refresh=False, transient=False)

    def __call__(self, event: StepEvent) -> None:
        """Take note of what happened."""
        data = event.data or {}
        if "steps" in data:
            self._plan(data)
        elif event.step_id is not None and "status" in data:
            self._step(event, data)
        elif "message" in data:
            self._say(styled((f"  {data['message']}", "yellow")))
        if self._console.is_terminal:
            self._live.update(self.tree(), refresh=True)

    def __enter__(self) -> PlanTree:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def tree(self) -> Tree:
        """Return the plan as it stands: each step below the last of those it waits for."""
        from rich.tree import Tree

        root = Tree(plain(self._title)[:_MOST_LETTERS] or "plan")
        branches: dict[str, Tree] = {}
        for name, before in self._before.items():
            above = next((branches[b] for b in reversed(before) if b in branches), root)
            branches[name] = above.add(self._line(name))
        return root

    def _plan(self, data: dict[str, Any]) -> None:
        for step in cast("list[dict[str, Any]]", data["steps"]):
            self._names[step["id"]] = step["title"]
            self._before[step["id"]] = step["depends_on"]
        self._states |= {**dict.fromkeys(self._before, "waiting"), **data.get("states", {})}

    def _step(self, event: StepEvent, data: dict[str, Any]) -> None:
        name = str(event.step_id)
        self._states[name] = data["status"]
        if event.snapshot is not None:
            self._outcomes[name] = str(event.snapshot.content or "")
            self._say(self._line(name))

    def _say(self, line: Text) -> None:
        if not self._console.is_terminal:
            self._console.print(line)

    def _line(self, name: str) -> Text:
        sign, style = _LOOKS[self._states.get(name, "waiting")]
        outcome = " ".join(self._outcomes.get(name, "").split())[:_MOST_LETTERS]
        shown = self._names.get(name, name)
        return styled((f"{sign} {shown}", style), (f"  {outcome}" if outcome else "", "dim"))
