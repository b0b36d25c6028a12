"""Pictures of a memory: a map of its steps, a run over time, what happened, what contexts hold.

Each function draws on the Axes it is given, or on new ones, and returns them; a notebook shows them
as they are, a script saves them with `ax.figure.savefig("run.png")`. Needs the extra `plot`
(matplotlib), which is loaded when something is drawn. Nothing here touches pyplot or its settings.
"""

from hybridagi_steps.plots.history import activity, context_use, outcomes
from hybridagi_steps.plots.run_timeline import timeline
from hybridagi_steps.plots.step_map import embedding_map

__all__ = ["activity", "context_use", "embedding_map", "outcomes", "timeline"]
