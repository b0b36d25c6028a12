"""Step memory for DSPy: programs remember what they did, and find it again.

Every public name is loaded on first use, so that `import hybridagi_steps` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps import embedders, errors, plots, rerankers
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
    "plots",
    "record",
    "record_step",
    "rerankers",
]

_HOMES: dict[str, str | None] = {
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
    "embedders": None,
    "errors": None,
    "in_context": "programs.recording",
    "plots": None,
    "record": "programs.recording",
    "record_step": "programs.recording",
    "rerankers": None,
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
