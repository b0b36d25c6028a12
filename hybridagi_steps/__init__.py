"""Step memory for DSPy: programs remember what they did, and find it again.

    import hybridagi_steps as hs

    memory = hs.StepMemory("steps.db")
    with hs.record(memory) as run:
        program(question="Which gate?")
    run                                   # what it did, as a tree
    memory.search("which gate", k=3)      # what it did before
    memory.runs()                         # all runs, those in flight too
    memory.session("trip", program)       # a conversation: ask, retry, edit, fork
    hs.StepRunner(program, memory)        # the same as streams of events

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
    from hybridagi_steps import embedders as embedders
    from hybridagi_steps import errors as errors
    from hybridagi_steps import plots as plots
    from hybridagi_steps import rerankers as rerankers
    from hybridagi_steps import testing as testing
    from hybridagi_steps.context.builder import Context as Context
    from hybridagi_steps.context.builder import ContextBuilder as ContextBuilder
    from hybridagi_steps.context.session_messages import (
        build_context_from_steps as build_context_from_steps,
    )
    from hybridagi_steps.context.session_messages import get_context_summary as get_context_summary
    from hybridagi_steps.context.sources import UserProfiles as UserProfiles
    from hybridagi_steps.dspy_types import AgentStepList as AgentStepList
    from hybridagi_steps.dspy_types import Query as Query
    from hybridagi_steps.dspy_types import QueryList as QueryList
    from hybridagi_steps.dspy_types import QueryWithSteps as QueryWithSteps
    from hybridagi_steps.dspy_types import StepContext as StepContext
    from hybridagi_steps.durable.session_runs import DurableRunner as DurableRunner
    from hybridagi_steps.graph.interpreter import GraphInterpreter as GraphInterpreter
    from hybridagi_steps.graph.interpreter import ready_agent as ready_agent
    from hybridagi_steps.graph.interpreter import ready_agents as ready_agents
    from hybridagi_steps.graph.interpreter import ready_programs as ready_programs
    from hybridagi_steps.graph.program_memory import ProgramMemory as ProgramMemory
    from hybridagi_steps.graph.run_state import AgentOutput as AgentOutput
    from hybridagi_steps.graph.run_state import ProgramSession as ProgramSession
    from hybridagi_steps.memory import StepMemory as StepMemory
    from hybridagi_steps.messages.agent_steps import to_agent_steps as to_agent_steps
    from hybridagi_steps.messages.agent_steps import to_messages as to_messages
    from hybridagi_steps.messages.provider_in import from_messages as from_messages
    from hybridagi_steps.messages.provider_out import to_provider as to_provider
    from hybridagi_steps.optimize.bootstrap import BootstrapFromMemory as BootstrapFromMemory
    from hybridagi_steps.optimize.credit import credit as credit
    from hybridagi_steps.optimize.demos import steps_to_demos as steps_to_demos
    from hybridagi_steps.optimize.examples import steps_to_examples as steps_to_examples
    from hybridagi_steps.optimize.examples import to_finetune as to_finetune
    from hybridagi_steps.optimize.exclusion import exclude as exclude
    from hybridagi_steps.optimize.feedback import trajectory_feedback as trajectory_feedback
    from hybridagi_steps.optimize.outlook import outlook as outlook
    from hybridagi_steps.optimize.patterns import common_sequences as common_sequences
    from hybridagi_steps.optimize.patterns import find_loops as find_loops
    from hybridagi_steps.optimize.patterns import find_runs as find_runs
    from hybridagi_steps.optimize.reliability import reliability as reliability
    from hybridagi_steps.optimize.with_experience import KNNSteps as KNNSteps
    from hybridagi_steps.optimize.with_experience import WithExperience as WithExperience
    from hybridagi_steps.planning.executor import StepExecutor as StepExecutor
    from hybridagi_steps.planning.generator import PlanGenerator as PlanGenerator
    from hybridagi_steps.planning.orchestrator import Orchestrator as Orchestrator
    from hybridagi_steps.planning.orchestrator import run_step_executor as run_step_executor
    from hybridagi_steps.planning.plan import Plan as Plan
    from hybridagi_steps.planning.plan import PlanStep as PlanStep
    from hybridagi_steps.planning.plan import PlanStepType as PlanStepType
    from hybridagi_steps.planning.results import PlanResult as PlanResult
    from hybridagi_steps.programs.adapters import NativeChatAdapter as NativeChatAdapter
    from hybridagi_steps.programs.adapters import NativeJSONAdapter as NativeJSONAdapter
    from hybridagi_steps.programs.adapters import StepMessages as StepMessages
    from hybridagi_steps.programs.adapters import StepsChatAdapter as StepsChatAdapter
    from hybridagi_steps.programs.adapters import StepsJSONAdapter as StepsJSONAdapter
    from hybridagi_steps.programs.adapters import StepsXMLAdapter as StepsXMLAdapter
    from hybridagi_steps.programs.pipeline import Pipeline as Pipeline
    from hybridagi_steps.programs.reranking import LMStepReranker as LMStepReranker
    from hybridagi_steps.programs.reranking import StepReranker as StepReranker
    from hybridagi_steps.programs.retriever import StepRetriever as StepRetriever
    from hybridagi_steps.recording import Recorded as Recorded
    from hybridagi_steps.recording import active_run_ids as active_run_ids
    from hybridagi_steps.recording import annotate as annotate
    from hybridagi_steps.recording import autolog as autolog
    from hybridagi_steps.recording import in_context as in_context
    from hybridagi_steps.recording import record as record
    from hybridagi_steps.recording import record_step as record_step
    from hybridagi_steps.recording import trajectory_of as trajectory_of
    from hybridagi_steps.recording.recorder import StepRecorder as StepRecorder
    from hybridagi_steps.recording_hooks import note_recalled as note_recalled
    from hybridagi_steps.records.agent_step import AgentStep as AgentStep
    from hybridagi_steps.records.agent_step import AgentStepType as AgentStepType
    from hybridagi_steps.records.event import StepDelta as StepDelta
    from hybridagi_steps.records.event import StepEvent as StepEvent
    from hybridagi_steps.records.event import StepEventType as StepEventType
    from hybridagi_steps.records.filters import StepFilter as StepFilter
    from hybridagi_steps.records.filters import StepHit as StepHit
    from hybridagi_steps.records.listings import steps_frame as steps_frame
    from hybridagi_steps.records.message import MessageRole as MessageRole
    from hybridagi_steps.records.message import Step as Step
    from hybridagi_steps.records.message import StepMetrics as StepMetrics
    from hybridagi_steps.records.provenance import Revocation as Revocation
    from hybridagi_steps.records.run import RunMetrics as RunMetrics
    from hybridagi_steps.records.trial_comparison import compare_trials as compare_trials
    from hybridagi_steps.running.hooks import RunHook as RunHook
    from hybridagi_steps.running.limits import AgentSession as AgentSession
    from hybridagi_steps.running.limits import StepRunnerConfig as StepRunnerConfig
    from hybridagi_steps.running.limits import ToolRequest as ToolRequest
    from hybridagi_steps.running.loop_guard import LoopGuard as LoopGuard
    from hybridagi_steps.running.pending_calls import UserQuestions as UserQuestions
    from hybridagi_steps.running.runner import StepRunner as StepRunner
    from hybridagi_steps.running.stopping import RunVetoed as RunVetoed
    from hybridagi_steps.running.stored_consents import ConsentRules as ConsentRules
    from hybridagi_steps.running.tool_calls import idempotent as idempotent
    from hybridagi_steps.running.tool_results import cacheable as cacheable
    from hybridagi_steps.sessions.repository import SessionRepository as SessionRepository
    from hybridagi_steps.sessions.repository import compare_branches as compare_branches
    from hybridagi_steps.sessions.repository import fork_session as fork_session
    from hybridagi_steps.sessions.session_details import describe_session as describe_session
    from hybridagi_steps.sessions.session_details import session_details as session_details
    from hybridagi_steps.sessions.session_handle import SessionHandle as SessionHandle
    from hybridagi_steps.sessions.session_handle import edit_from_sequence as edit_from_sequence
    from hybridagi_steps.sessions.session_handle import retry_from_sequence as retry_from_sequence
    from hybridagi_steps.stores.copying import CopyReport as CopyReport
    from hybridagi_steps.stores.retention import Retained as Retained
    from hybridagi_steps.token_counters import token_counter as token_counter
    from hybridagi_steps.workspace.tools import workspace_tools as workspace_tools
    from hybridagi_steps.workspace.workspace import Workspace as Workspace

__version__ = "0.1.0"


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
    "recording": (
        "Recorded active_run_ids annotate autolog in_context record record_step trajectory_of"
    ),
    "recording.recorder": "StepRecorder",
    "recording_hooks": "note_recalled",
    "records.agent_step": "AgentStep AgentStepType",
    "records.event": "StepDelta StepEvent StepEventType",
    "records.filters": "StepFilter StepHit",
    "records.listings": "steps_frame",
    "records.message": "MessageRole Step StepMetrics",
    "records.provenance": "Revocation",
    "records.run": "RunMetrics",
    "records.trial_comparison": "compare_trials",
    "running.hooks": "RunHook",
    "running.limits": "AgentSession StepRunnerConfig ToolRequest",
    "running.loop_guard": "LoopGuard",
    "running.pending_calls": "UserQuestions",
    "running.runner": "StepRunner",
    "running.stopping": "RunVetoed",
    "running.stored_consents": "ConsentRules",
    "running.tool_calls": "idempotent",
    "running.tool_results": "cacheable",
    "sessions.repository": "SessionRepository compare_branches fork_session",
    "sessions.session_details": "describe_session session_details",
    "sessions.session_handle": "SessionHandle edit_from_sequence retry_from_sequence",
    "stores.copying": "CopyReport",
    "stores.retention": "Retained",
    "token_counters": "token_counter",
    "workspace.tools": "workspace_tools",
    "workspace.workspace": "Workspace",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES, needs={"DurableRunner": "dbos"})
