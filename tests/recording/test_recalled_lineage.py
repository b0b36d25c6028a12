"""`metadata.recalled`: which stored steps stood in the prompts of a recorded program."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import dspy
import pytest
from conformance.samples import step
from runner_cases import run

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.programs import Action, GraphProgram
from hybridagi_steps.programs.tools import PastActionSearch, Predict
from hybridagi_steps.recording.step_writer import MOST_RECALLED
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.testing import scripted_lm

OLD = [UUID(int=n + 1) for n in range(3)]


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """A memory of three refunds."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        opened.add([past(n) for n in range(3)])
        yield opened


def past(number: int, **values: Any) -> hs.AgentStep:
    told = {"tool": "refund", "purpose": f"refund ticket {number}", "arguments": {"n": number}}
    outputs = {"result": f"receipt {number}"}
    return step(id=OLD[number % 3], inputs=told, outputs=outputs, run_id="old", **values)


def recalled(steps: Any) -> list[list[str]]:
    """The numbers of the old steps that each step names."""
    numbers: dict[str, str] = {str(name): str(n) for n, name in enumerate(OLD)}
    found: list[list[str]] = [(each.metadata or {}).get("recalled", []) for each in steps]
    return [[numbers.get(name, name) for name in names] for names in found]


def answers(count: int = 9) -> Any:
    return scripted_lm([{"answer": f"answer {n}"} for n in range(count)])


class Past(dspy.Signature):
    """Answer from the past."""

    past: hs.StepContext = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Nested(dspy.Signature):
    """Answer from whatever holds steps."""

    notes: dict[str, Any] = dspy.InputField()
    answer: str = dspy.OutputField()


def test_steps_in_a_predictors_inputs(memory: hs.StepMemory) -> None:
    one, two, three = memory.get(OLD).steps
    hit = hs.StepHit(step=two, score=1.0)
    notes = {"list": [one, hit], "deep": {"found": hs.QueryWithSteps(steps=[three])}}
    with dspy.context(lm=answers()), hs.record(memory) as run:
        dspy.Predict("question -> answer")(question="x")
        dspy.Predict(Past)(past=hs.StepContext.of([one, hit]), question="x")
    with dspy.context(lm=answers()), hs.record(memory) as other:
        dspy.Predict(Nested)(notes=notes)
    assert recalled(run.steps.steps) == [[], ["0", "1"]]
    assert recalled(other.steps.steps) == [["0", "1", "2"]]
    assert other.errors == []


def test_a_list_of_steps_through_an_adapter_that_writes_them(memory: hs.StepMemory) -> None:
    class Listed(dspy.Signature):
        past: hs.AgentStepList = dspy.InputField()
        answer: str = dspy.OutputField()

    lm = answers()
    with dspy.context(lm=lm, adapter=hs.StepsChatAdapter()), hs.record(memory) as run:
        dspy.Predict(Listed)(past=memory.get(OLD[:2]))
    assert "receipt 1" in str(lm.history[-1]["messages"])
    assert recalled(run.steps.steps) == [["0", "1"]]


def test_steps_in_demos(memory: hs.StepMemory) -> None:
    predict = dspy.Predict(Past)
    held = hs.StepContext.of(memory.get(OLD[2]))
    predict.demos = [dspy.Example(past=held, question="y", answer="z")]
    with dspy.context(lm=answers()), hs.record(memory) as run:
        predict(past=hs.StepContext(), question="x")
    assert recalled(run.steps.steps) == [["2"]]


def test_an_agents_tool_recalls_what_stood_before_its_thought(memory: hs.StepMemory) -> None:
    def look() -> str:
        """Look at the shelf."""
        return "seen"

    agent = dspy.ReAct("question -> answer", tools=[look])
    held = hs.StepContext.of(memory.get(OLD[2]))
    agent.react.demos = [dspy.Example(question="y", past=held, next_tool_name="look")]
    thoughts: list[Any] = [
        {"next_thought": "a", "next_tool_name": "look", "next_tool_args": {}},
        {"next_thought": "b", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "c", "answer": "d"},
    ]
    with dspy.context(lm=scripted_lm(thoughts)), hs.record(memory) as run:
        agent(question="x")
    assert [step.tool for step in run.steps.steps] == [None, "look", "finish", None, None]
    assert recalled(run.steps.steps)[1:] == [["2"]] * 4


class Recalling(dspy.Module):
    """Puts what a retriever finds into a prompt, in one way or the other."""

    def __init__(self, memory: hs.StepMemory, as_text: Callable[[Any], Any]) -> None:
        super().__init__()
        self.retrieve = hs.StepRetriever(memory, k=1)
        self.predict = dspy.Predict("notes, question -> answer")
        self.as_text = as_text

    def forward(self, question: str) -> Any:
        """Predict, recall, predict twice."""
        self.predict(notes="", question=question)
        found = self.retrieve(question)
        self.predict(notes=self.as_text(found), question=question)
        return self.predict(notes="", question="what next?")

    async def aforward(self, question: str) -> Any:
        """Do so asynchronously."""
        found = await self.retrieve.acall(question)
        return await self.predict.acall(notes=self.as_text(found), question=question)


RENDERED: list[Callable[[Any], Any]] = [
    lambda found: "\n".join(found.passages),
    lambda found: str(found.as_context()),
    lambda found: found.steps[0].result.upper(),
]


@pytest.mark.parametrize("as_text", RENDERED)
def test_what_a_retriever_found_is_taken_to_stand_in_all_that_follows(
    memory: hs.StepMemory, as_text: Callable[[Any], Any]
) -> None:
    agent = Recalling(memory, as_text)
    with dspy.context(lm=answers()), hs.record(memory) as run:
        agent(question="refund ticket 1")
    assert recalled(run.steps.steps) == [[], [], [], ["1"], ["1"], ["1"], ["1"]]
    assert [str(each.step_type) for each in run.steps.steps][2:4] == ["ProgramCall", "ProgramEnd"]
    with dspy.context(lm=answers()), hs.record(memory) as run:
        asyncio.run(agent.acall(question="refund ticket 2"))
    assert recalled(run.steps.steps)[-2:] == [["2"], ["2"]]


def test_a_tool_that_searches_by_hand(memory: hs.StepMemory) -> None:
    def recall(query: str) -> str:
        """Recall what was done."""
        return str(memory.search(query, 1)[0].step.result)

    calls: list[Any] = [
        {"next_thought": "a", "next_tool_name": "look", "next_tool_args": {"at": "x"}},
        {"next_thought": "b", "next_tool_name": "recall", "next_tool_args": {"query": "ticket 2"}},
        {"next_thought": "c", "next_tool_name": "look", "next_tool_args": {"at": "y"}},
        {"next_thought": "d", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "e", "answer": "f"},
    ]

    def look(at: str) -> str:
        """Look at something."""
        return at

    agent = dspy.ReAct("question -> answer", tools=[look, recall])
    with dspy.context(lm=scripted_lm(calls)), hs.record(memory) as run:
        agent(question="?")
    assert recalled(run.steps.steps) == [[], [], *[["2"]] * 5]


def test_branches_do_not_know_what_the_others_recalled(memory: hs.StepMemory) -> None:
    retrieve = hs.StepRetriever(memory, k=1)
    predict = dspy.Predict("question -> answer")

    class Both(dspy.Module):
        async def aforward(self, question: str) -> Any:
            async def one() -> None:
                await retrieve.acall("refund ticket 1")
                await predict.acall(question="left")

            async def other() -> None:
                await asyncio.sleep(0)
                await predict.acall(question="right")

            await asyncio.gather(one(), other())
            return await predict.acall(question=question)

    with dspy.context(lm=answers()), hs.record(memory) as run:
        asyncio.run(Both().acall(question="joined"))
    told = {
        step.arguments["question"]: names
        for step, names in zip(run.steps.steps, recalled(run.steps.steps), strict=True)
        if step.arguments.get("question") and str(step.step_type) == "Action"
    }
    assert told == {"left": ["1"], "right": [], "joined": ["1"]}


def test_the_runs_own_steps_are_not_recalled(memory: hs.StepMemory) -> None:
    with dspy.context(lm=answers()), hs.record(memory) as run:
        dspy.Predict("question -> answer")(question="refund ticket 1")
        memory.search("refund ticket 1", k=9, where={"run_id": run.id})
        dspy.Predict(Past)(past=hs.StepContext.of(run.steps), question="x")
    assert recalled(run.steps.steps) == [[], []]


def test_what_a_program_notes_itself(memory: hs.StepMemory) -> None:
    hs.note_recalled([OLD[0]])  # outside of any recording nothing happens
    with dspy.context(lm=answers()), hs.record(memory) as run:
        hs.note_recalled([OLD[2], "message 7"])
        with unnoted():
            memory.search("refund", k=1)
        dspy.Predict("question -> answer")(question="x")
    assert recalled(run.steps.steps) == [["2", "message 7"]]


def test_a_context_notes_what_it_quotes(memory: hs.StepMemory) -> None:
    asked = hs.Step(session_id="s", role="user", content="refund ticket 2 please")
    builder = hs.ContextBuilder(memory, budget=4000, k=1)
    with dspy.context(lm=answers()), hs.record(memory) as run:
        context = builder.build(steps=[asked])
        dspy.Predict("question -> answer")(question=str(context.messages))
    assert context.recalled == [str(OLD[2])]
    assert recalled(run.steps.steps) == [["2"]]

    class Talk(dspy.Signature):
        past: hs.StepMessages = dspy.InputField()
        question: str = dspy.InputField()
        answer: str = dspy.OutputField()

    whole = {"messages": context.messages, "recalled": context.recalled}
    for given in (context, context.steps, whole):
        with dspy.context(lm=answers()), hs.record(memory) as run:
            dspy.Predict(Talk)(past=hs.StepMessages.of(given), question="x")
        assert recalled(run.steps.steps) == [["2"]]


def test_a_language_model_that_ranks_has_the_candidates_in_its_prompt(
    memory: hs.StepMemory,
) -> None:
    retrieve = hs.StepRetriever(memory, k=1, reranker=hs.LMStepReranker(reasoning=False))
    with dspy.context(lm=scripted_lm([{"ranking": "2"}])), hs.record(memory) as run:
        found = retrieve("refund ticket")
    ranked = [sorted(names) for names in recalled(run.steps.steps)]
    assert ranked[1:] == [["0", "1", "2"], ["0", "1", "2"]]
    assert len(found.steps) == 1


NODES = {
    "first": 'tool: "Predict", purpose: "think", prompt: "{{query}}"',
    "past": 'tool: "PastActionSearch", purpose: "recall", prompt: "refund ticket 1", '
    'var_out: "found", disable_inference: true',
    "answer": 'tool: "Predict", purpose: "answer", prompt: "{{found}}", var_in: ["found"]',
}


def graph(*names: str) -> GraphProgram:
    """A program of some nodes, one after the other."""
    nodes = [f'({name}:Action {{id: "{name}", {NODES[name]}}})' for name in names]
    nodes += [f'({name}:Control {{id: "{name}"}})' for name in ("start", "end")]
    line = ["start", *names, "end"]
    edges = [f"({one})-[:NEXT]->({two})" for one, two in itertools.pairwise(line)]
    return GraphProgram.from_cypher("CREATE\n" + ",\n".join(nodes + edges), name="main")


def test_a_graph_program_that_searches_its_past(memory: hs.StepMemory) -> None:
    def agent(*names: str) -> hs.GraphInterpreter:
        tools = [Predict(), PastActionSearch(k=1)]
        return hs.GraphInterpreter([graph(*names)], tools=tools, memory=memory)

    with dspy.context(lm=answers()), hs.record(memory) as run:
        out = agent("first", "past", "answer")(query="?")
    assert out.finish_reason == "finished"
    assert recalled(run.steps.steps) == [[], [], ["1"], ["1"], ["1"]]
    found = out.session.variables["found"]
    later = GraphProgram("main", var_in=["found"])
    later.add(Action("first", "Predict", "think", "{{query}}"))
    later.add(Action("answer", "Predict", "answer", "{{found}}", var_in=["found"]))
    later.connect("start", "first").connect("first", "answer").connect("answer", "end")
    again = hs.GraphInterpreter([later], tools=[Predict()], memory=memory)
    session = hs.ProgramSession(variables={"found": found})
    with dspy.context(lm=answers()), hs.record(memory) as run:
        again(query="?", session=session)
    assert recalled(run.steps.steps) == [[], [], ["1"], ["1"]], "a variable of the run before"


def test_ids_stay_when_a_memory_redacts(memory: hs.StepMemory) -> None:
    hidden: list[Any] = [
        lambda text: re.sub(r"\d+", "#", text),
        lambda _: "…",
        lambda text: text if "4711" not in text else 1 / 0,
    ]
    for redact in hidden:
        with hs.StepMemory(":memory:", embedder="hashing", redact=redact) as private:
            hs.note_recalled([OLD[0]])
            with dspy.context(lm=answers()), hs.record(private) as run:
                hs.note_recalled([OLD[1], "ticket 4711"])
                dspy.Predict("question -> answer")(question="4711")
            for kept in run.steps.steps:
                names = (kept.metadata or {})["recalled"]
                assert names[0] == str(OLD[1])
                assert "4711" not in kept.model_dump_json()


def test_the_list_is_bounded_and_the_steps_before_stand_for_the_rest(
    memory: hs.StepMemory,
) -> None:
    many = [UUID(int=n + 100) for n in range(MOST_RECALLED)]
    with dspy.context(lm=answers()), hs.record(memory) as run:
        for names in (many, OLD, [UUID(int=n + 500) for n in range(99)]):
            with run_of(names):
                dspy.Predict("question -> answer")(question="x")
    steps: Any = run.steps.steps
    first, second, third = steps
    assert first.metadata["recalled"] == [str(name) for name in many]
    assert second.metadata["recalled"] == [str(first.id), *map(str, OLD)]
    assert len(third.metadata["recalled"]) == MOST_RECALLED
    assert third.metadata["recalled_more"] == 1 + 99 - MOST_RECALLED
    assert third.metadata["recalled"][0] == str(second.id)
    assert "truncated" not in third.metadata


class run_of:  # noqa: N801 - reads as a statement
    """Notes ids for one call only, as a tool would that is left again."""

    def __init__(self, names: list[UUID]) -> None:
        self.names = names

    def __enter__(self) -> None:
        from hybridagi_steps.recording.recorder import active_recorders

        [recorder] = active_recorders()
        assert recorder.run is not None
        recorder.run.recalled = {str(name): None for name in self.names}

    def __exit__(self, *_: object) -> None:
        pass


def test_work_that_a_plan_takes_over(memory: hs.StepMemory) -> None:
    async def finds(work: Work, workspace: Any) -> Finished:
        del work, workspace
        return Finished(summary="found", artifacts={"v": 1})

    plan = "PLAN: p\nSTEP: a\nGOAL: find\nARTIFACTS: v"
    for number in range(2):
        planner = hs.Orchestrator(executor=finds, memory=memory, reuse=True)
        assert planner.run(plan=plan).step("a").reused == bool(number)
    first, second = [run.run_id for run in memory.runs() if run.run_id != "old"][::-1]
    done = {str(each.id) for each in memory.run(first).steps}
    ends = memory.find({"run_id": second, "step_types": "ProgramEnd"}).steps
    assert len(ends) == 2
    assert all(done & {*(end.metadata or {})["recalled"]} for end in ends)


def test_a_turn_names_the_imported_messages_before_it(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "pay 666"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"id": "chat", "messages": talk}))
    import_file(memory, tmp_path / "chat.jsonl")
    imported = {str(each.id) for each in memory.find({"sources": "chat.jsonl"}).steps}
    runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)
    run(runner, "chat", "and now?", answers())
    run(runner, "own", "hello", answers())
    run(runner, "own", "hello again", answers())
    turn = memory.find({"session_id": "chat", "trust": "team"}).steps
    assert turn
    assert all(imported & {*(each.metadata or {})["recalled"]} for each in turn)
    for own in memory.find({"session_id": "own"}).steps:
        assert "recalled" not in (own.metadata or {}), "its own line is no recall"
    memory.revoke({"sources": "chat.jsonl"})
    assert memory.find({"session_id": "chat"}).steps == []


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        (lambda memory: memory.find({"run_id": "old"}), {"0", "1", "2"}),
        (lambda memory: memory.run("old"), {"0", "1", "2"}),
        (lambda memory: memory.get(OLD[2]), {"2"}),
        (lambda memory: memory.search("refund ticket 2", k=1), {"2"}),
        (lambda memory: memory.children(OLD[1]), {"child"}),
        (lambda memory: memory.parents("child"), {"1"}),
    ],
    ids=["find", "run", "get", "search", "children", "parents"],
)
def test_whatever_a_program_reads_of_its_memory_counts_as_recalled(
    memory: hs.StepMemory, read: Callable[[hs.StepMemory], Any], wanted: set[str]
) -> None:
    class Reading(dspy.Module):
        def forward(self, question: str) -> Any:
            found = read(memory)
            return dspy.Prediction(answer=str(len(found)))

    memory.add(step(id="child", parent_id=OLD[1], run_id="older"))
    with hs.record(memory) as run:
        Reading()(question="?")
    call, end = run.steps.steps
    assert recalled([call]) == [[]]
    assert {*recalled([end])[0]} == wanted
