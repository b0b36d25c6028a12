"""GraphInterpreter: an agent made of graph programs, as a module like any other in DSPy.

The module holds what lasts: programs, tools, one predictor per node, a memory. A run's state lives
in a `ProgramRun`, so copies, threads, teleprompters, saving and loading need no special care. Every
run is recorded: into the memory, into whatever recorder is active, and into the trace it returns.

Ready agents are programs that come with the package, for anybody's tools: `react` thinks and acts
in turns, `plan_and_act` follows a plan, `reflexion` improves its answer and learns from its own
reviews, `episodic_recall` remembers what it was told. When a tool fails they are told so and go on.
They are texts like any other program.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Literal, cast

import dspy

from hybridagi_steps.dspy_types import Query
from hybridagi_steps.errors import (
    InvalidMemoryError,
    InvalidQueryError,
    InvalidSettingError,
    UnknownProgramError,
)
from hybridagi_steps.graph.checks import check_programs
from hybridagi_steps.graph.nodes import Action
from hybridagi_steps.graph.predictors import predictors_of
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.program_memory import AgentPrograms, ProgramLibrary, programs_of
from hybridagi_steps.graph.resuming import node_fields, stopped_run
from hybridagi_steps.graph.run import ProgramRun
from hybridagi_steps.graph.run_state import AgentOutput, ProgramSession, adriven, driven
from hybridagi_steps.graph.tools.base import GraphTool
from hybridagi_steps.graph.tools.builtin import (
    AskUser,
    ChainOfThought,
    PastActionSearch,
    Predict,
    Speak,
)
from hybridagi_steps.graph.tools.functions import tools_by_name
from hybridagi_steps.graph.tools.tool_box import ToolBox
from hybridagi_steps.recording.blocks import Block
from hybridagi_steps.recording.call_tree import Labels
from hybridagi_steps.recording.recorder import active_recorders
from hybridagi_steps.recording.step_writer import Memory, check_memory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.validation import whole_number

_ENDING, _ACTING = ".cypher", ".acting.cypher"
"""How files of ready programs end; the second kind is for an agent that is given tools."""
_BOX = "Act"
_BUILT_IN: dict[str, type[GraphTool]] = {
    kind.__name__: kind for kind in (AskUser, ChainOfThought, PastActionSearch, Predict, Speak)
}


class GraphInterpreter(dspy.Module):
    """Runs graph programs.

    Args:
        programs: GraphPrograms (one, several, a dict), their text, or a ProgramMemory.
        tools: What Actions may use: tool objects, `dspy.Tool` objects, functions.
        memory: Where steps are recorded and recalled; without one a run still returns its steps.
        entrypoint: The program that a run begins with.
        num_history: How many past steps of its run each prompt shows.
        max_iters: Most nodes that a run visits, those of called programs included.
        commit_decision_steps: Whether prompts show past decisions too; they are recorded anyway.
        decision_lm: The language model that decides, instead of the one configured.
        max_corrections: How often a model is asked again when its answer is no option, or does
            not fit a tool's arguments.
        on_error: Whether an error that the programs do not take in is raised, or returned as the
            output's `error`. By default it is raised inside DSPy's `compile` and `Evaluate`, which
            count and score what is raised, and returned everywhere else.
        debug: Raise it in any case.
        verbose: Print each step as soon as it is done.

    Raises:
        UnknownProgramError: No program is named like the entrypoint.
        InvalidProgramError: What is wrong with the programs.
        UnknownToolError: A program uses a tool that is not given.
        InvalidSettingError: A number below its least, a tool that is none, two tools of one name,
            another `on_error`.
        InvalidMemoryError: Steps cannot be recorded into `memory`.
    """

    records_itself = True
    """For recorders: the programs it runs leave the steps, the module none."""

    @property
    def told_as(self) -> str:
        """The program that its runs begin with, by which their steps name it."""
        return self.entrypoint

    def __init__(
        self,
        programs: GraphProgram | str | Iterable[Any] | Mapping[str, Any] | ProgramLibrary,
        tools: Iterable[Any] | Mapping[str, Any] = (),
        memory: Memory | None = None,
        entrypoint: str = "main",
        num_history: int = 5,
        max_iters: int = 20,
        commit_decision_steps: bool = False,
        decision_lm: object = None,
        max_corrections: int = 2,
        on_error: Literal["raise", "return"] | None = None,
        debug: bool = False,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.programs, known = _library(programs, entrypoint)
        self.tools = tools_by_name(tools)
        self.memory = None if memory is None else check_memory(memory)
        self.entrypoint = entrypoint
        self.num_history = whole_number("num_history", num_history, 0)
        self.max_iters = whole_number("max_iters", max_iters, 1)
        self.commit_decision_steps = commit_decision_steps
        self.max_corrections = whole_number("max_corrections", max_corrections, 0)
        self.decision_lm = decision_lm
        self.on_error = _checked_policy(on_error, debug)
        self.debug, self.verbose = debug, verbose
        self.nodes = predictors_of(known, self.tools)
        self._check_recall()

    if TYPE_CHECKING:
        # DSPy's own annotations promise no more than a Prediction.
        def __call__(self, *args: object, **kwargs: object) -> AgentOutput: ...  # noqa: D102
        async def acall(self, *args: object, **kwargs: object) -> AgentOutput: ...  # noqa: D102

    def forward(
        self,
        query: str | Query,
        session: ProgramSession | None = None,
        objective: str | None = None,
        resume: AgentOutput | str | None = None,
        **variables: object,
    ) -> AgentOutput:
        """Run the entry program.

        Args:
            query: What the user asks.
            session: The session of an earlier run, to go on with it; it is not changed.
            objective: What the run works towards; by default the query.
            resume: What a run gave back that failed or reached `max_iters`, or the id of a run that
                gave nothing back (see `stopped_run`): taken up at the node where it stopped, with
                its session and its steps in the prompts; its own query is not said again. A program
                that an Action called is begun anew. Beside an id, `session` is what the run was
                begun with.
            variables: Further variables for the prompts.

        Returns:
            How the run ended, the answer, the steps. An error that ends it is told there, or
            raised, as `on_error` has it; cancellation is always raised.

        Raises:
            InvalidQueryError: The query is no text.
            InvalidSettingError: The session is none, the objective no text, or there is nothing to
                resume: the run finished, or the programs have changed.
            Exception: Whatever failed at a node, with a note that names the node.
        """
        with self._recording():
            return driven(self._run(query, session, objective, resume, variables).work())

    async def aforward(
        self,
        query: str | Query,
        session: ProgramSession | None = None,
        objective: str | None = None,
        resume: AgentOutput | str | None = None,
        **variables: object,
    ) -> AgentOutput:
        """Run the entry program asynchronously; otherwise as `forward`."""
        with self._recording():
            return await adriven(self._run(query, session, objective, resume, variables).work())

    @contextmanager
    def _recording(self) -> Generator[None]:
        if self.memory is None:
            yield
            return
        block = Block(self.memory, Labels())  # which a closed memory does not stop
        try:
            yield
        finally:
            block.leave()

    def stopped_run(
        self, run_id: str, session: ProgramSession | None = None, memory: Memory | None = None
    ) -> AgentOutput:
        """Return what a run would have given back that was killed, cancelled, or raised its error.

        It is read from the stored steps, node by node along the programs, and can be given to
        `resume`. What a node did without a stored step is done again: at most the one that it
        stopped in. Results come back as JSON data, and as far as the memory did not redact them.

        Args:
            run_id: The run.
            session: What it was begun with, if that was the session of an earlier run.
            memory: Where it was recorded; by default the memory of the agent, else of the active
                recording.

        Raises:
            UnknownRunError: The memory has no run of this agent and user by that id.
            InvalidSettingError: It finished, the programs have changed since, a result that later
                nodes may use was too large to be stored, or there is no memory.
        """
        known = self.memory or next((each.memory for each in active_recorders()), None)
        if (found := memory or known) is None:
            raise InvalidSettingError("a run is read from a memory, and this agent has none.")
        output = stopped_run(self, found, run_id, _checked_session(session))
        self._check_place(output)
        return output

    def node_fields(self, step: AgentStep, memory: Memory) -> dict[str, Any]:
        """Return what the predictor of a node was first asked, and gave, when it left a step.

        Raises:
            StepsError: The memory has not the whole run, or the programs have changed since.
        """
        return node_fields(self, memory, step)

    def _run(
        self,
        query: str | Query,
        session: ProgramSession | None,
        objective: str | None,
        resume: AgentOutput | str | None,
        variables: dict[str, Any],
    ) -> ProgramRun:
        text, before = _checked_query(query), _checked_session(session)
        if objective is not None and not isinstance(objective, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"objective is a text, not {type(objective).__name__}.")
        if isinstance(resume, str):
            resume = self.stopped_run(resume, session)
        elif resume is not None:
            self._check_resumable(resume, session)
        before = before if resume is None else resume.session
        following = before.going_on(text, variables, objective, resumed=resume is not None)
        told = {"query": text, **variables}
        if objective is not None:
            told["objective"] = objective
        return ProgramRun(self, following, told, resume)

    def _check_resumable(self, stopped: object, session: object) -> None:
        if not isinstance(stopped, AgentOutput):
            raise InvalidSettingError(
                "resume is what an earlier run gave back, or the id of a run, not "
                f"{type(stopped).__name__}."
            )
        if session is not None:
            raise InvalidSettingError("a resumed run has its own session; leave out session.")
        self._check_place(stopped)

    def _check_place(self, stopped: AgentOutput) -> None:
        if not stopped.stopped_at:
            raise InvalidSettingError(
                "this run stopped at no node: there is nothing to resume. agent(query=…, "
                "session=out.session) goes on with its conversation."
            )
        called = self.entrypoint
        for name, node_id in stopped.stopped_at:
            node = self.programs.get(name).nodes.get(node_id) if name == called else None
            if node is None:
                raise InvalidSettingError(
                    f"the run stopped at {name}.{node_id}, to which this agent does not come: its "
                    "programs have changed. Begin a new run."
                )
            called = getattr(node, "program", "")

    def _check_recall(self) -> None:
        for tool in self.tools.values():
            needs = getattr(tool, "needs_memory", False)
            if needs and not callable(getattr(self.memory, "search", None)):
                raise InvalidMemoryError(self.memory, "search()")


def _checked_policy(on_error: object, debug: bool) -> Literal["raise", "return"] | None:
    if on_error not in ("raise", "return", None):
        raise InvalidSettingError(f"on_error is 'raise' or 'return', not {on_error!r}.")
    if debug and on_error == "return":
        raise InvalidSettingError(
            "debug=True raises every error; on_error='return' contradicts it."
        )
    return on_error


def _checked_query(query: object) -> str:
    text = query.query if isinstance(query, Query) else query
    if not isinstance(text, str):
        raise InvalidQueryError(
            f"query is what the user asks, a text or a Query; not {type(query).__name__}."
        )
    return text


def _checked_session(session: object) -> ProgramSession:
    if session is None or isinstance(session, ProgramSession):
        return session or ProgramSession()
    raise InvalidSettingError(
        "session is the session of an earlier run, agent(query=…, session=out.session), not "
        f"{type(session).__name__}; a variable for the prompts needs another name."
    )


def _library(programs: object, entrypoint: str) -> tuple[AgentPrograms, list[GraphProgram]]:
    """Return the library of an agent, and the programs that have predictors from the start.

    These are all that were given as a list; of a memory, which may hold thousands, those that the
    entry program depends on.
    """
    if all(callable(getattr(programs, verb, None)) for verb in ("names", "get", "is_protected")):
        library = AgentPrograms(entrypoint, library=cast("ProgramLibrary", programs))
        known = library.own()
        check_programs(known)
    else:
        given = programs_of(programs)
        check_programs(given)
        library = AgentPrograms(entrypoint, given)
        known = [library.get(name) for name in library.names()]
    if entrypoint not in library.names():
        raise UnknownProgramError(entrypoint, library.names())
    return library, known


def ready_agents() -> list[str]:
    """Return the names of the agents that come with the package."""
    return sorted(folder.name for folder in _folder().iterdir() if folder.is_dir())


def ready_programs(name: str, *, acting: bool = False) -> list[GraphProgram]:
    """Return the programs of an agent; `main` is the one to begin with.

    Args:
        name: Which one.
        acting: Whether it is given tools; `reflexion` and `episodic_recall` do without as well.

    Raises:
        UnknownProgramError: No agent has this name.
    """
    if name not in ready_agents():
        raise UnknownProgramError(name, ready_agents())
    files_of = _folder().joinpath(name).iterdir()
    texts = {file.name: file.read_text("utf-8") for file in files_of if file.name.endswith(_ENDING)}
    plain = sorted(file.removesuffix(_ENDING) for file in texts if not file.endswith(_ACTING))
    chosen = {
        each: each + (_ACTING if acting and each + _ACTING in texts else _ENDING) for each in plain
    }
    return [GraphProgram.from_cypher(texts[file], each) for each, file in chosen.items()]


def ready_agent(
    name: str, tools: Iterable[Any] = (), memory: Memory | None = None, **options: Any
) -> GraphInterpreter:
    """Return an agent that comes with the package.

    Args:
        name: Which one.
        tools: Functions and `dspy.Tool`s to act with, and tools such as `AskUser(callback)` that
            take the place of the agent's own. `react` and `plan_and_act` need some to act with.
        memory: Where it records and recalls; `reflexion` and `episodic_recall` need one.
        options: Whatever else `GraphInterpreter` takes.

    Raises:
        UnknownProgramError: No agent has this name.
        InvalidSettingError: A tool that the agent has no use for, or none where it must act.
        InvalidMemoryError: The agent recalls, and no memory was given.
    """
    programs, given = ready_programs(name), list(tools)
    used = _tools_of(programs)
    if any(not _is_own(tool, used) for tool in given):
        programs = ready_programs(name, acting=True)
        used = _tools_of(programs)
    own = {tool.name: tool for tool in given if _is_own(tool, used)}
    if _BOX in used and _BOX not in own:
        box = [tool for tool in given if not _is_own(tool, used)]
        if not box:
            raise InvalidSettingError(f"{name} acts with tools: give functions or dspy.Tools.")
        own[_BOX] = ToolBox(box, name=_BOX)
    chosen = [own.get(tool) or _BUILT_IN[tool]() for tool in used]
    return GraphInterpreter(programs, chosen, memory, **options)


def _tools_of(programs: Iterable[GraphProgram]) -> list[str]:
    nodes = [node for program in programs for node in program.nodes.values()]
    return list(dict.fromkeys(node.tool for node in nodes if isinstance(node, Action)))


def _is_own(tool: object, used: Sequence[str]) -> bool:
    """Whether a tool takes the place of one that the programs use."""
    return isinstance(tool, GraphTool) and tool.name in used


def _folder() -> Traversable:
    return files("hybridagi_steps.data").joinpath("programs")
