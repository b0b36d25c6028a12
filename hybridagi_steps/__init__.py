"""Step memory for DSPy: programs remember what they did, and find it again.

    import hybridagi_steps as hs

    memory = hs.StepMemory("steps.db")
    with hs.record(memory) as run:
        program(question="Which gate?")
    run                                   # what it did, as a tree
    memory.search("which gate", k=3)      # what it did before
    memory.runs()                         # all runs, those in flight too
    hs.StepRunner(program, memory)        # sessions: streams, retries, resumes, forks

Where to look (`help(hs.StepMemory)` and so on; `dir(hs)` lists all):

    record, record_step, annotate         what a program does becomes steps of a run
    StepMemory, StepFilter, StepHit       keep, search, list, score, revoke, purge
    AgentStep, Step, StepEvent            what is kept, said and streamed
    StepRetriever, StepMessages           past steps in a DSPy program and its prompts
    WithExperience, BootstrapFromMemory   learning from runs; credit, outlook, find_loops
    StepRunner, SessionRepository         sessions, attempts and branches; ContextBuilder
    GraphInterpreter, ProgramMemory       graph programs
    Orchestrator, Plan, Workspace         plans, and the folder that they work in
    errors, embedders, rerankers, plots, testing

`hybridagi-steps --help` shows the command line; `hybridagi-steps serve` starts the page. Every
public name is loaded on first use, so that `import hybridagi_steps` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps import embedders, errors, plots, rerankers, testing
    from hybridagi_steps.context.builder import Context, ContextBuilder
    from hybridagi_steps.context.session_messages import (
        build_context_from_steps,
        get_context_summary,
    )
    from hybridagi_steps.context.sources import UserProfiles
    from hybridagi_steps.dspy_types import (
        AgentStepList,
        Query,
        QueryList,
        QueryWithSteps,
        StepContext,
    )
    from hybridagi_steps.durable.session_runs import DurableRunner
    from hybridagi_steps.graph.interpreter import (
        GraphInterpreter,
        ready_agent,
        ready_agents,
        ready_programs,
    )
    from hybridagi_steps.graph.program_memory import ProgramMemory
    from hybridagi_steps.graph.run_state import AgentOutput, ProgramSession
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.messages.agent_steps import to_agent_steps, to_messages
    from hybridagi_steps.messages.provider_in import from_messages
    from hybridagi_steps.messages.provider_out import to_provider
    from hybridagi_steps.optimize.bootstrap import BootstrapFromMemory
    from hybridagi_steps.optimize.credit import credit
    from hybridagi_steps.optimize.demos import steps_to_demos
    from hybridagi_steps.optimize.examples import steps_to_examples, to_finetune
    from hybridagi_steps.optimize.exclusion import exclude
    from hybridagi_steps.optimize.feedback import trajectory_feedback
    from hybridagi_steps.optimize.outlook import outlook
    from hybridagi_steps.optimize.patterns import common_sequences, find_loops, find_runs
    from hybridagi_steps.optimize.reliability import reliability
    from hybridagi_steps.optimize.with_experience import KNNSteps, WithExperience
    from hybridagi_steps.planning.executor import StepExecutor
    from hybridagi_steps.planning.generator import PlanGenerator
    from hybridagi_steps.planning.orchestrator import Orchestrator, run_step_executor
    from hybridagi_steps.planning.plan import Plan, PlanStep, PlanStepType
    from hybridagi_steps.planning.results import PlanResult
    from hybridagi_steps.programs.adapters import (
        NativeChatAdapter,
        NativeJSONAdapter,
        StepMessages,
        StepsChatAdapter,
        StepsJSONAdapter,
        StepsXMLAdapter,
    )
    from hybridagi_steps.programs.pipeline import Pipeline
    from hybridagi_steps.programs.reranking import LMStepReranker, StepReranker
    from hybridagi_steps.programs.retriever import StepRetriever
    from hybridagi_steps.recording import (
        Recorded,
        active_run_ids,
        annotate,
        in_context,
        record,
        record_step,
        trajectory_of,
    )
    from hybridagi_steps.recording.recorder import StepRecorder
    from hybridagi_steps.recording_hooks import note_recalled
    from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
    from hybridagi_steps.records.event import StepDelta, StepEvent, StepEventType
    from hybridagi_steps.records.filters import StepFilter, StepHit
    from hybridagi_steps.records.message import MessageRole, Step, StepMetrics
    from hybridagi_steps.records.provenance import Revocation
    from hybridagi_steps.records.run import RunMetrics
    from hybridagi_steps.records.trials import compare_trials
    from hybridagi_steps.running.hooks import RunHook
    from hybridagi_steps.running.limits import AgentSession, StepRunnerConfig, ToolRequest
    from hybridagi_steps.running.loop_guard import LoopGuard
    from hybridagi_steps.running.pending_calls import UserQuestions
    from hybridagi_steps.running.runner import StepRunner, edit_from_sequence, retry_from_sequence
    from hybridagi_steps.running.stopping import RunVetoed
    from hybridagi_steps.running.stored_consents import ConsentRules
    from hybridagi_steps.running.tool_calls import idempotent
    from hybridagi_steps.running.tool_results import cacheable
    from hybridagi_steps.sessions.repository import (
        SessionRepository,
        compare_branches,
        fork_session,
    )
    from hybridagi_steps.sessions.session_details import describe_session, session_details
    from hybridagi_steps.stores.copying import CopyReport
    from hybridagi_steps.stores.retention import Retained
    from hybridagi_steps.token_counters import token_counter
    from hybridagi_steps.workspace.tools import workspace_tools
    from hybridagi_steps.workspace.workspace import Workspace

__version__ = "0.1.0"

__all__ = [
    "AgentOutput",
    "AgentSession",
    "AgentStep",
    "AgentStepList",
    "AgentStepType",
    "BootstrapFromMemory",
    "ConsentRules",
    "Context",
    "ContextBuilder",
    "CopyReport",
    "DurableRunner",
    "GraphInterpreter",
    "KNNSteps",
    "LMStepReranker",
    "LoopGuard",
    "MessageRole",
    "NativeChatAdapter",
    "NativeJSONAdapter",
    "Orchestrator",
    "Pipeline",
    "Plan",
    "PlanGenerator",
    "PlanResult",
    "PlanStep",
    "PlanStepType",
    "ProgramMemory",
    "ProgramSession",
    "Query",
    "QueryList",
    "QueryWithSteps",
    "Recorded",
    "Retained",
    "Revocation",
    "RunHook",
    "RunMetrics",
    "RunVetoed",
    "SessionRepository",
    "Step",
    "StepContext",
    "StepDelta",
    "StepEvent",
    "StepEventType",
    "StepExecutor",
    "StepFilter",
    "StepHit",
    "StepMemory",
    "StepMessages",
    "StepMetrics",
    "StepRecorder",
    "StepReranker",
    "StepRetriever",
    "StepRunner",
    "StepRunnerConfig",
    "StepsChatAdapter",
    "StepsJSONAdapter",
    "StepsXMLAdapter",
    "ToolRequest",
    "UserProfiles",
    "UserQuestions",
    "WithExperience",
    "Workspace",
    "active_run_ids",
    "annotate",
    "build_context_from_steps",
    "cacheable",
    "common_sequences",
    "compare_branches",
    "compare_trials",
    "credit",
    "describe_session",
    "edit_from_sequence",
    "embedders",
    "errors",
    "exclude",
    "find_loops",
    "find_runs",
    "fork_session",
    "from_messages",
    "get_context_summary",
    "idempotent",
    "in_context",
    "note_recalled",
    "outlook",
    "plots",
    "ready_agent",
    "ready_agents",
    "ready_programs",
    "record",
    "record_step",
    "reliability",
    "rerankers",
    "retry_from_sequence",
    "run_step_executor",
    "session_details",
    "steps_to_demos",
    "steps_to_examples",
    "testing",
    "to_agent_steps",
    "to_finetune",
    "to_messages",
    "to_provider",
    "token_counter",
    "trajectory_feedback",
    "trajectory_of",
    "workspace_tools",
]

_HOMES: dict[str, str | None] = {
    "AgentOutput": "graph.run_state",
    "AgentSession": "running.limits",
    "AgentStep": "records.agent_step",
    "AgentStepList": "dspy_types",
    "AgentStepType": "records.agent_step",
    "BootstrapFromMemory": "optimize.bootstrap",
    "ConsentRules": "running.stored_consents",
    "Context": "context.builder",
    "ContextBuilder": "context.builder",
    "CopyReport": "stores.copying",
    "DurableRunner": "durable.session_runs",
    "GraphInterpreter": "graph.interpreter",
    "KNNSteps": "optimize.with_experience",
    "LMStepReranker": "programs.reranking",
    "LoopGuard": "running.loop_guard",
    "MessageRole": "records.message",
    "NativeChatAdapter": "programs.adapters",
    "NativeJSONAdapter": "programs.adapters",
    "Orchestrator": "planning.orchestrator",
    "Pipeline": "programs.pipeline",
    "Plan": "planning.plan",
    "PlanGenerator": "planning.generator",
    "PlanResult": "planning.results",
    "PlanStep": "planning.plan",
    "PlanStepType": "planning.plan",
    "ProgramMemory": "graph.program_memory",
    "ProgramSession": "graph.run_state",
    "Query": "dspy_types",
    "QueryList": "dspy_types",
    "QueryWithSteps": "dspy_types",
    "Recorded": "recording",
    "Retained": "stores.retention",
    "Revocation": "records.provenance",
    "RunHook": "running.hooks",
    "RunMetrics": "records.run",
    "RunVetoed": "running.stopping",
    "SessionRepository": "sessions.repository",
    "Step": "records.message",
    "StepContext": "dspy_types",
    "StepDelta": "records.event",
    "StepEvent": "records.event",
    "StepEventType": "records.event",
    "StepExecutor": "planning.executor",
    "StepFilter": "records.filters",
    "StepHit": "records.filters",
    "StepMemory": "memory",
    "StepMessages": "programs.adapters",
    "StepMetrics": "records.message",
    "StepRecorder": "recording.recorder",
    "StepReranker": "programs.reranking",
    "StepRetriever": "programs.retriever",
    "StepRunner": "running.runner",
    "StepRunnerConfig": "running.limits",
    "StepsChatAdapter": "programs.adapters",
    "StepsJSONAdapter": "programs.adapters",
    "StepsXMLAdapter": "programs.adapters",
    "ToolRequest": "running.limits",
    "UserProfiles": "context.sources",
    "UserQuestions": "running.pending_calls",
    "WithExperience": "optimize.with_experience",
    "Workspace": "workspace.workspace",
    "active_run_ids": "recording",
    "annotate": "recording",
    "cacheable": "running.tool_results",
    "build_context_from_steps": "context.session_messages",
    "common_sequences": "optimize.patterns",
    "compare_branches": "sessions.repository",
    "compare_trials": "records.trials",
    "credit": "optimize.credit",
    "describe_session": "sessions.session_details",
    "edit_from_sequence": "running.runner",
    "embedders": None,
    "errors": None,
    "exclude": "optimize.exclusion",
    "find_loops": "optimize.patterns",
    "find_runs": "optimize.patterns",
    "fork_session": "sessions.repository",
    "from_messages": "messages.provider_in",
    "get_context_summary": "context.session_messages",
    "idempotent": "running.tool_calls",
    "in_context": "recording",
    "note_recalled": "recording_hooks",
    "outlook": "optimize.outlook",
    "plots": None,
    "ready_agent": "graph.interpreter",
    "ready_agents": "graph.interpreter",
    "ready_programs": "graph.interpreter",
    "record": "recording",
    "record_step": "recording",
    "reliability": "optimize.reliability",
    "rerankers": None,
    "retry_from_sequence": "running.runner",
    "session_details": "sessions.session_details",
    "run_step_executor": "planning.orchestrator",
    "steps_to_demos": "optimize.demos",
    "steps_to_examples": "optimize.examples",
    "testing": None,
    "to_agent_steps": "messages.agent_steps",
    "to_finetune": "optimize.examples",
    "to_messages": "messages.agent_steps",
    "to_provider": "messages.provider_out",
    "token_counter": "token_counters",
    "trajectory_feedback": "optimize.feedback",
    "trajectory_of": "recording",
    "workspace_tools": "workspace.tools",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, needs={"DurableRunner": "dbos"})
