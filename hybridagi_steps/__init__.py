"""Step memory for DSPy: programs remember what they did, and find it again.

Every public name is loaded on first use, so that `import hybridagi_steps` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridagi_steps import embedders, errors, rerankers
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.programs.adapters import (
        StepContext,
        StepsChatAdapter,
        StepsJSONAdapter,
        StepsXMLAdapter,
    )
    from hybridagi_steps.programs.lm_reranker import LMStepReranker
    from hybridagi_steps.programs.recorder import StepRecorder
    from hybridagi_steps.programs.recording import Recorded, in_context, record, record_step
    from hybridagi_steps.programs.retriever import StepReranker, StepRetriever
    from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
    from hybridagi_steps.records.event import StepDelta, StepEvent, StepEventType
    from hybridagi_steps.records.filters import StepFilter, StepHit
    from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
    from hybridagi_steps.records.predictions import (
        AgentStepList,
        Query,
        QueryList,
        QueryWithSteps,
    )
    from hybridagi_steps.records.run import RunMetrics

__version__ = "0.1.0"

__all__ = [
    "AgentStep",
    "AgentStepList",
    "AgentStepType",
    "LMStepReranker",
    "MessageRole",
    "Query",
    "QueryList",
    "QueryWithSteps",
    "Recorded",
    "RunMetrics",
    "Step",
    "StepContext",
    "StepDelta",
    "StepEvent",
    "StepEventType",
    "StepFilter",
    "StepHit",
    "StepMemory",
    "StepMetrics",
    "StepRecorder",
    "StepReranker",
    "StepRetriever",
    "StepsChatAdapter",
    "StepsJSONAdapter",
    "StepsXMLAdapter",
    "embedders",
    "errors",
    "in_context",
    "record",
    "record_step",
    "rerankers",
]

_HOMES = {
    "AgentStep": "records.agent_step",
    "AgentStepList": "records.predictions",
    "AgentStepType": "records.agent_step",
    "LMStepReranker": "programs.lm_reranker",
    "MessageRole": "records.message",
    "Query": "records.predictions",
    "QueryList": "records.predictions",
    "QueryWithSteps": "records.predictions",
    "Recorded": "programs.recording",
    "RunMetrics": "records.run",
    "Step": "records.message",
    "StepContext": "programs.adapters",
    "StepDelta": "records.event",
    "StepEvent": "records.event",
    "StepEventType": "records.event",
    "StepFilter": "records.filters",
    "StepHit": "records.filters",
    "StepMemory": "memory",
    "StepMetrics": "records.message",
    "StepRecorder": "programs.recorder",
    "StepReranker": "programs.retriever",
    "StepRetriever": "programs.retriever",
    "StepsChatAdapter": "programs.adapters",
    "StepsJSONAdapter": "programs.adapters",
    "StepsXMLAdapter": "programs.adapters",
    "in_context": "programs.recording",
    "record": "programs.recording",
    "record_step": "programs.recording",
}
_MODULES = {"embedders", "errors", "rerankers"}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
