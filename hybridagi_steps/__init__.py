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

_NAMES = {
    "": "embedders errors plots rerankers testing",
    "context.builder": "Context ContextBuilder",
    "context.session_messages": "build_context_from_steps get_context_summary",
    "context.sources": "UserProfiles",
    "dspy_types": "AgentStepList Query QueryList QueryWithSteps StepContext",
    "durable.session_runs": "DurableRunner",
    "graph.interpreter": "GraphInterpreter ready_agent ready_agents ready_programs",
    "graph.program_memory": "ProgramMemory",
    "graph.run_state": "AgentOutput ProgramSession",
    "memory": "StepMemory",
    "messages.agent_steps": "to_agent_steps to_messages",
    "messages.provider_in": "from_messages",
    "messages.provider_out": "to_provider",
    "optimize.bootstrap": "BootstrapFromMemory",
    "optimize.credit": "credit",
    "optimize.demos": "steps_to_demos",
    "optimize.examples": "steps_to_examples to_finetune",
    "optimize.exclusion": "exclude",
    "optimize.feedback": "trajectory_feedback",
    "optimize.outlook": "outlook",
    "optimize.patterns": "common_sequences find_loops find_runs",
    "optimize.reliability": "reliability",
    "optimize.with_experience": "KNNSteps WithExperience",
    "planning.executor": "StepExecutor",
    "planning.generator": "PlanGenerator",
    "planning.orchestrator": "Orchestrator run_step_executor",
    "planning.plan": "Plan PlanStep PlanStepType",
    "planning.results": "PlanResult",
    "programs.adapters": (
        "NativeChatAdapter NativeJSONAdapter StepMessages StepsChatAdapter StepsJSONAdapter "
        "StepsXMLAdapter"
    ),
    "programs.pipeline": "Pipeline",
    "programs.reranking": "LMStepReranker StepReranker",
    "programs.retriever": "StepRetriever",
    "recording": "Recorded active_run_ids annotate in_context record record_step trajectory_of",
    "recording.recorder": "StepRecorder",
    "recording_hooks": "note_recalled",
    "records.agent_step": "AgentStep AgentStepType",
    "records.event": "StepDelta StepEvent StepEventType",
    "records.filters": "StepFilter StepHit",
    "records.message": "MessageRole Step StepMetrics",
    "records.provenance": "Revocation",
    "records.run": "RunMetrics",
    "records.trials": "compare_trials",
    "running.hooks": "RunHook",
    "running.limits": "AgentSession StepRunnerConfig ToolRequest",
    "running.loop_guard": "LoopGuard",
    "running.pending_calls": "UserQuestions",
    "running.runner": "StepRunner edit_from_sequence retry_from_sequence",
    "running.stopping": "RunVetoed",
    "running.stored_consents": "ConsentRules",
    "running.tool_calls": "idempotent",
    "running.tool_results": "cacheable",
    "sessions.repository": "SessionRepository compare_branches fork_session",
    "sessions.session_details": "describe_session session_details",
    "stores.copying": "CopyReport",
    "stores.retention": "Retained",
    "token_counters": "token_counter",
    "workspace.tools": "workspace_tools",
    "workspace.workspace": "Workspace",
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES, needs={"DurableRunner": "dbos"})
