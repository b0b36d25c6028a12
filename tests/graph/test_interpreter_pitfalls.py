"""What went wrong in the agent system this one descends from must not go wrong here.

One test for each defect of its programs and its interpreter; those of retrieval and of steps are
tested where retrieval and steps are.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from agent_programs import ASK_BACK_REPLIES, ask_back, chain, say

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import AskUser, PastActionSearch, Predict, Speak
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.testing import request_text, scripted_lm


def two_decisions() -> GraphProgram:
    """Two decisions; the answer to the first decides whether the second is asked."""
    program = GraphProgram("main", "Decide twice, or once")
    program.add(Decision("first", "Decide first", "First, for {{ query }}?"))
    program.add(Decision("second", "Decide second", "Second, for {{ query }}?"))
    program.add(Action("answer", "Predict", "Answer", "Answer {{ query }}"))
    program.connect("start", "first").connect("first", "second", "GO")
    program.connect("first", "answer", "SKIP").connect("second", "answer", "YES")
    return program.connect("second", "end", "NO").connect("answer", "end")


def two_decisions_reply(request: Any) -> dict[str, str]:
    """Skip the second decision for odd queries."""
    text = request_text(request)
    if "First, for" in text:
        return {"choice": "SKIP" if "odd" in text.rsplit("First, for", 1)[1] else "GO"}
    return {"choice": "YES"} if "Second, for" in text else {"answer": "fine"}


def compiled(agent: GraphInterpreter) -> Any:
    """The agent with demos bootstrapped from four examples."""
    examples = [
        dspy.Example(query=query, final_answer="fine").with_inputs("query")
        for query in ("odd one", "even two", "odd three", "even four")
    ]
    teleprompter = dspy.BootstrapFewShot(
        metric=lambda example, output, trace=None: output.final_answer == example.final_answer,
        max_bootstrapped_demos=4,
        max_labeled_demos=0,
    )
    with dspy.context(lm=scripted_lm(two_decisions_reply)):
        return teleprompter.compile(agent, trainset=examples)


class TestResultsAndTraces:
    def test_var_out_keeps_a_result_for_the_prompts_that_follow(self) -> None:
        program = chain(
            Action("find", "Predict", "Find", "{{ query }}", var_out="x", disable_inference=True),
            say("{{ x }}!", var_in=["x"]),
        )
        out = GraphInterpreter(program, [Predict(), Speak()])(query="found")
        assert out.final_answer == "found!"
        assert out.session.variables == {"x": "found"}

    def test_the_trace_holds_steps_and_no_texts(self) -> None:
        out = GraphInterpreter(chain(say("hi")), [Speak()])(query="q")
        assert [type(step) for step in out.program_trace.steps] == [AgentStep] * 3

    def test_the_failing_step_is_in_the_trace_and_in_the_memory(
        self, memory: hs.StepMemory
    ) -> None:
        def broken() -> None:
            raise OSError("disk on fire")

        action = Action("b", "broken", "Break", disable_inference=True)
        out = GraphInterpreter(chain(action), [broken], memory)(query="q")
        error = {"error": {"type": "OSError", "message": "disk on fire"}}
        assert (out.program_trace.steps[1].status, out.program_trace.steps[1].outputs) == (
            "error",
            error,
        )
        stored = memory.find({"status": "error", "step_types": "Action"}).steps
        assert [step.outputs for step in stored] == [error]

    def test_a_step_does_not_grow_with_the_steps_before_it(self, memory: hs.StepMemory) -> None:
        nodes = [Action(f"n{i:02}", "Predict", "Work", "Do a part") for i in range(30)]
        agent = GraphInterpreter(chain(*nodes), [Predict()], memory, max_iters=30, num_history=30)
        with dspy.context(lm=scripted_lm(lambda _: {"answer": "x" * 500})):
            agent(query="q")
        sizes = [len(step.model_dump_json()) for step in memory.iter_steps() if step.tool]
        assert max(sizes) < 1.2 * min(sizes)


class TestRunState:
    def test_a_compiled_copy_answers(self) -> None:
        agent = compiled(GraphInterpreter(two_decisions(), [Predict()]))
        with dspy.context(lm=scripted_lm(two_decisions_reply)):
            assert agent.deepcopy()(query="odd").final_answer == "fine"
            assert copy.deepcopy(agent)(query="even").final_answer == "fine"

    def test_a_compiled_agent_is_saved_loaded_and_run_on_8_threads(self, tmp_path: Path) -> None:
        compiled(GraphInterpreter(two_decisions(), [Predict()])).save(tmp_path / "agent.json")
        loaded = GraphInterpreter(two_decisions(), [Predict()])
        loaded.load(tmp_path / "agent.json")
        model = scripted_lm(two_decisions_reply)

        def run(number: int) -> str:
            with dspy.context(lm=model):
                return loaded(query=f"{'odd' if number % 2 else 'even'} {number}").final_answer

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(run, range(24))) == ["fine"] * 24

    def test_nothing_is_left_behind_on_the_module_or_its_tools(self) -> None:
        agent = GraphInterpreter(ask_back(), [Speak(), AskUser(lambda _: "Paris")])
        before = (dict(vars(agent)), {name: dict(vars(t)) for name, t in agent.tools.items()})
        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)):
            agent(query="q")
        own = {key: value for key, value in vars(agent).items() if key != "history"}
        assert own == {key: value for key, value in before[0].items() if key != "history"}
        assert {name: dict(vars(tool)) for name, tool in agent.tools.items()} == before[1]

    def test_nothing_leaks_from_a_run_that_was_stopped(self) -> None:
        program = chain(
            say("{{ query }}", "one", var_out="said"), say("two", "two"), say("three", "three")
        )
        agent = GraphInterpreter(program, [Speak()], max_iters=2)
        outs = [agent(query=query) for query in ("a", "b", "c")]
        assert {out.finish_reason for out in outs} == {"max_iters"}
        assert [out.session.variables["said"] for out in outs] == ["a", "b", "c"]
        assert [len(out.program_trace.steps) for out in outs] == [4, 4, 4]
        assert [len(out.session.chat_history) for out in outs] == [3, 3, 3]

    def test_async_runs_keep_apart_too(self) -> None:
        program = chain(say("{{ query }}", var_out="said"), say("{{ said }}", "b", var_in=["said"]))
        agent = GraphInterpreter(program, [Speak()])

        async def several() -> list[str]:
            outs = await asyncio.gather(*(agent.acall(query=f"q{n}") for n in range(24)))
            return [out.final_answer for out in outs]

        assert asyncio.run(several()) == [f"q{n}" for n in range(24)]


class TestLearning:
    def test_demos_land_on_the_node_they_came_from(self) -> None:
        agent = compiled(GraphInterpreter(two_decisions(), [Predict()]))
        asked = {
            name: {
                str(demo["question"] if "question" in demo else demo["prompt"]).split(",")[0]
                for demo in predictor.demos
            }
            for name, predictor in agent.named_predictors()
        }
        assert asked["nodes['main.first']"] == {"First"}
        assert asked["nodes['main.second']"] == {"Second"}
        assert all(text.startswith("Answer") for text in asked["nodes['main.answer']"])

    def test_the_first_decision_of_a_run_is_not_always_the_same_predictor(self) -> None:
        program = two_decisions()
        agent = GraphInterpreter(program, [Predict()])
        second: Any = agent.nodes["main.second"]
        second.signature = second.signature.with_instructions("MARK OF THE SECOND")
        model = scripted_lm(two_decisions_reply)
        with dspy.context(lm=model):
            agent(query="odd")
            agent(query="even")
        marked = [
            request_text(request)
            for request in model.requests
            if "MARK OF THE SECOND" in str(request.system)
        ]
        assert len(marked) == 1
        assert "Second, for even?" in marked[0]

    def test_trials_are_no_experience(self, memory: hs.StepMemory) -> None:
        compiled(GraphInterpreter(two_decisions(), [Predict()], memory))
        assert memory.find().steps == []
        assert list(memory.iter_steps({"scope": "*"}))
        assert memory.search("decide first") == []


class TestPrograms:
    def test_two_labels_may_lead_to_one_target(self) -> None:
        program = GraphProgram("main").add(Decision("d", "Pick", "Which?")).add(say("done"))
        program.connect("start", "d").connect("d", "say", "A").connect("d", "say", "B")
        program.add(say("other", "other")).connect("d", "other", "C")
        program.connect("say", "end").connect("other", "end")
        agent = GraphInterpreter(program, [Speak()])
        for label in ("A", "B"):
            with dspy.context(lm=scripted_lm([{"choice": label}])):
                out = agent(query="q")
            assert out.final_answer == "done"
            assert (out.program_trace.steps[1].outputs or {})["choice"] == label
            options = (out.program_trace.steps[1].inputs or {})["options"]
            assert options == ["A", "B", "C"]

    @pytest.mark.parametrize("labels", [["YES"], ["YES", "YES"], ["Ask User", "ASK_USER"]])
    def test_decisions_without_a_real_choice_are_refused(self, labels: list[str]) -> None:
        program = GraphProgram("main").add(Decision("d", "Pick", "Which?")).connect("start", "d")
        for label in labels:
            program.connect("d", "end", label)
        with pytest.raises(errors.InvalidProgramError):
            GraphInterpreter(program)

    def test_disable_inference_false_asks_a_model(self) -> None:
        text = chain(Action("a", "Speak", "Say", "Say hello")).to_cypher()
        text = text.replace('prompt: "Say hello"', 'prompt: "Say hello", disable_inference: false')
        with dspy.context(lm=scripted_lm([{"message": "from the model"}])):
            assert GraphInterpreter(text, [Speak()])(query="q").final_answer == "from the model"

    @pytest.mark.parametrize(
        "prompt",
        [
            "see http://example.org/a?b=c",
            "f({a: 1}) and })",
            "\"double\" 'single' \\ back",
            "a\n\tb",
        ],
    )
    def test_prompts_of_any_kind_survive_the_text_form(self, prompt: str) -> None:
        agent = GraphInterpreter(chain(say(prompt)).to_cypher(), [Speak()])
        assert agent(query="q").final_answer == prompt

    def test_ask_user_means_ask_user(self) -> None:
        agent = GraphInterpreter(ask_back(), [Speak(), AskUser(lambda _: "Paris")])
        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)):
            out = agent(query="q")
        assert (out.program_trace.steps[1].outputs or {})["choice"] == "ASK_USER"


class TestMemory:
    def test_steps_carry_run_session_and_user(self, memory: hs.StepMemory) -> None:
        agent = GraphInterpreter(chain(say("hi")), [Speak()], memory)
        with hs.record(memory, session_id="desk", user_id="ann") as run:
            agent(query="q")
        labels = {(step.run_id, step.session_id, step.user_id) for step in memory.iter_steps()}
        assert labels == {(run.id, "desk", "ann")}

    def test_recall_does_not_mix_users_nor_return_the_current_run(
        self, memory: hs.StepMemory
    ) -> None:
        work = Action("w", "Predict", "Refund the flight", "for {{ query }}", [], None, True)
        recall = Action("r", "PastActionSearch", "Recall", "refund the flight", [], "past", True)
        for user in ("ann", "bob"):
            search = PastActionSearch(where={"user_id": user})
            agent = GraphInterpreter(chain(work, recall), [Predict(), search], memory)
            for _ in range(2):
                with hs.record(memory, user_id=user) as run:
                    out = agent(query=user)
            found = out.session.variables["past"].steps  # pyright: ignore[reportPossiblyUnboundVariable]
            assert {step.user_id for step in found} == {user}
            assert run.id not in {step.run_id for step in found}  # pyright: ignore[reportPossiblyUnboundVariable]


class TestRunsThatCannotBeRecorded:
    def steps(self, out: Any) -> list[tuple[int, str, Any]]:
        trace = out.program_trace.steps
        places = {step.id: place for place, step in enumerate(trace)}
        return [(each.hop, str(each.step_type), places.get(each.parent_id)) for each in trace]

    def test_have_a_whole_trace_and_say_so(self, memory: hs.StepMemory) -> None:
        helper = chain(say("inner"), name="helper")
        main = chain(Program("call", "Get help", "helper"), say("outer"))
        agent = GraphInterpreter([main, helper], [Speak()], memory=memory)
        before = agent(query="q")
        memory.close()
        out = agent(query="q")
        assert before.recording_errors == []
        assert (out.finish_reason, out.final_answer, out.error) == ("finished", "outer", None)
        assert self.steps(out) == self.steps(before)
        call, inner, *_ = out.program_trace.steps
        assert inner.program_id == str(call.id)
        assert {problem.type for problem in out.recording_errors} == {"MemoryClosedError"}
        assert "ProgramCall was not stored" in out.recording_errors[0].message

    def test_leave_nothing_dangling_when_the_memory_comes_back(self, memory: hs.StepMemory) -> None:
        class Flaky:
            failing = 1

            def add(self, step: AgentStep) -> None:
                if self.failing:
                    self.failing -= 1
                    raise OSError("away")
                memory.add(step)

            def run(self, run_id: str) -> Any:
                return memory.run(run_id)

        out = GraphInterpreter(chain(say("a"), say("b", "more")), [Speak()], memory=Flaky())(
            query=""
        )
        kept = list(memory.iter_steps())
        assert [(step.hop, step.step_type) for step in kept] == [(0, "Action"), (1, "Action")]
        assert [step.parent_id for step in kept] == [None, kept[0].id]
        assert [str(step.step_type) for step in out.program_trace.steps] == [
            *("ProgramCall", "Action", "Action", "ProgramEnd")
        ]
        assert [problem.type for problem in out.recording_errors] == ["OSError"]
