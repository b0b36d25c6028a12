"""Recording: what DSPy programs do, written into a memory as steps.

`record` gives one run for everything in a block; `Recorded` carries its recording along wherever
DSPy copies, streams or optimises a program; `record_step` lets a plain function take part;
`StepRecorder` records a whole process. All join a run that is active on the same memory, so that
nothing is recorded twice. The names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.recording.blocks import RunHandle as RunHandle
    from hybridagi_steps.recording.blocks import autolog as autolog
    from hybridagi_steps.recording.blocks import in_context as in_context
    from hybridagi_steps.recording.blocks import record as record
    from hybridagi_steps.recording.manual_steps import annotate as annotate
    from hybridagi_steps.recording.manual_steps import record_step as record_step
    from hybridagi_steps.recording.recorded_program import Recorded as Recorded
    from hybridagi_steps.recording.recorder import StepRecorder as StepRecorder
    from hybridagi_steps.recording.recorder import active_run_ids as active_run_ids
    from hybridagi_steps.recording.trajectories import trajectory_of as trajectory_of


_NAMES = {
    "blocks": "RunHandle autolog in_context record",
    "manual_steps": "annotate record_step",
    "recorded_program": "Recorded",
    "recorder": "StepRecorder active_run_ids",
    "trajectories": "trajectory_of",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
