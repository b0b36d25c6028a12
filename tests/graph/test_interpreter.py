"""Agents made of graph programs: they walk, decide, recurse, stop, fail and tell the truth."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from agent_programs import ASK_BACK_REPLIES, ask_back, both, chain, say

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import (
    AskUser,
    ChainOfThought,
    GraphTool,
    Predict,
    Speak,
    ToolUse,
    UpdateObjective,
)
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.testing import ScriptedLM, request_text, scripted_lm
from tests.benchmarks import interpreter as interpreter_cost

Call = Callable[..., AgentOutput]


def kinds(output: AgentOutput) -> list[str]:
    """Type and tool or program of each step."""
    return [
        f"{step.step_type.value} {step.tool or step.program or ''}".strip()
        for step in output.program_trace.steps
    ]


class TestARun:
    @both
    def test_decides_asks_loops_and_answers(self, call: Call) -> None:
        agent = GraphInterpreter(ask_back(), tools=[Speak(), AskUser(lambda _: "Paris")])
        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)):
            out = call(agent, query="How is the weather?")
        assert (out.finish_reason, out.final_answer) == ("finished", "It rains in Paris.")
        assert out.error is None
        assert kinds(out) == [
            "ProgramCall main",
            "Decision",
            "Action AskUser",
            "Decision",
            "Action Speak",
            "ProgramEnd main",
        ]
        assert out.session.variables == {"detail": "Paris"}
        said = [(message.role, message.content) for message in out.session.chat_history]
        assert said == [
            ("user", "How is the weather?"),
            ("assistant", "Which city?"),
            ("user", "Paris"),
            ("assistant", "It rains in Paris."),
        ]

    def test_gives_a_prediction_of_real_steps(self) -> None:
        out = GraphInterpreter(chain(say("hello")), tools=[Speak()])(query="hi")
        assert isinstance(out, dspy.Prediction)
        assert isinstance(out.program_trace, hs.AgentStepList)
        assert all(isinstance(step, AgentStep) for step in out.program_trace.steps)
        assert out["final_answer"] == "hello"
        assert out.toDict()["finish_reason"] == "finished"

    def test_has_steps_with_the_agreed_keys_and_links(self, memory: hs.StepMemory) -> None:
        agent = GraphInterpreter(
            ask_back(), tools=[Speak(), AskUser(lambda _: "Paris")], memory=memory
        )
        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)):
            out = agent(query="weather")
        call, decision, action, *_, end = out.program_trace.steps
        assert call.inputs == {
            "program": "main",
            "purpose": "Answer, or ask back",
            "arguments": {"query": "weather"},
        }
        assert decision.inputs == {
            "purpose": "Check the question",
            "options": ["ANSWER", "ASK_USER"],
            "arguments": {"question": "Is weather clear?"},
        }
        assert decision.outputs == {"choice": "ASK_USER"}
        assert action.inputs == {
            "purpose": "Clarify",
            "tool": "AskUser",
            "arguments": {"question": "Which city?"},
        }
        assert action.outputs == {"result": "Paris"}
        assert end.inputs == {"program": "main"}
        assert end.outputs == {"final_answer": "It rains in Paris."}
        steps = out.program_trace.steps
        assert [step.hop for step in steps] == list(range(len(steps)))
        assert [step.parent_id for step in steps] == [None, *(step.id for step in steps[:-1])]
        assert [step.program_id for step in steps] == [None, *[str(call.id)] * (len(steps) - 1)]
        assert {step.run_id for step in steps} == {call.run_id}

    @both
    def test_is_stored_once_and_just_as_it_is_returned(
        self, call: Call, memory: hs.StepMemory
    ) -> None:
        agent = GraphInterpreter(
            ask_back(), tools=[Speak(), AskUser(lambda _: "Paris")], memory=memory
        )
        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)), hs.record(memory) as run:
            out = call(agent, query="weather")
        assert run.errors == []
        assert run.steps.steps == out.program_trace.steps
        assert list(memory.iter_steps()) == out.program_trace.steps

    def test_under_a_recorder_of_the_process_is_a_run_of_its_own(
        self, memory: hs.StepMemory
    ) -> None:
        agent = GraphInterpreter(chain(say("a")), tools=[Speak()])
        with dspy.context(callbacks=[hs.StepRecorder(memory)]):
            first, second = agent(query="one"), agent(query="two")
        assert [step.run_id for step in first.program_trace.steps] != [
            step.run_id for step in second.program_trace.steps
        ]
        both_runs = [*first.program_trace.steps, *second.program_trace.steps]
        assert list(memory.iter_steps()) == both_runs

    def test_is_told_in_few_words_by_a_program_around_it(self, memory: hs.StepMemory) -> None:
        class Desk(dspy.Module):
            """A desk with an agent."""

            def __init__(self) -> None:
                super().__init__()
                self.agent = GraphInterpreter(chain(say("hi", var_out="said")), [Speak()])

            def forward(self, question: str) -> Any:
                return self.agent(query=question)

        with hs.record(memory) as run:
            Desk()(question="q")
        desk, main, _, _, end = run.steps.steps
        assert (desk.program, main.program, main.program_id) == ("Desk", "main", str(desk.id))
        assert end.outputs == {"final_answer": "hi", "finish_reason": "finished"}

    def test_is_a_run_of_a_session_too(self, memory: hs.StepMemory) -> None:
        from hybridagi_steps.running.runner import StepRunner

        agent = GraphInterpreter(ask_back(), [Speak(), AskUser(lambda _: "Paris")], memory)

        async def events() -> list[Any]:
            runner = StepRunner(agent, memory)
            return [event async for event in runner.run_stream("desk", "weather?")]

        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)):
            snapshots = [event.snapshot for event in asyncio.run(events()) if event.snapshot]
        assert snapshots[-1].content == "It rains in Paris."
        steps = list(memory.iter_steps())
        assert [step.step_type.value for step in steps][-1] == "ProgramEnd"
        assert {step.session_id for step in steps} == {"desk"}

    def test_is_returned_as_redacted_as_it_is_stored(self) -> None:
        def hide(text: str) -> str:
            return text.replace("4111", "[card]")

        with hs.StepMemory(":memory:", embedder="hashing", redact=hide) as memory:
            out = GraphInterpreter(chain(say("card {{ query }}")), [Speak()], memory)(query="4111")
            assert "4111" not in "".join(step.model_dump_json() for step in memory.iter_steps())
            assert list(memory.iter_steps()) == out.program_trace.steps
        assert out.final_answer == "card 4111"

    def test_goes_on_when_the_memory_does_not(self, caplog: pytest.LogCaptureFixture) -> None:
        class Full:
            """A memory on a full disk."""

            def add(self, step: Any) -> None:
                raise OSError("disk full")

            def run(self, run_id: str) -> list[AgentStep]:
                return []

        out = GraphInterpreter(chain(say("hello")), [Speak()], Full())(query="q")
        assert (out.finish_reason, out.final_answer) == ("finished", "hello")
        assert "Action Speak" in kinds(out)
        assert "was not stored" in caplog.text

    def test_is_shown_in_a_notebook(self) -> None:
        out = GraphInterpreter(chain(say("<b>hi</b>")), [Speak()])(query="q")
        assert "finished: &lt;b&gt;hi" in out._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def test_counts_tokens_with_the_node_that_used_them(self, memory: hs.StepMemory) -> None:
        program = chain(Action("think", "ChainOfThought", "Think", "Think hard"))
        agent = GraphInterpreter(program, tools=[ChainOfThought()], memory=memory)
        with dspy.context(lm=scripted_lm([{"reasoning": "r", "answer": "42"}])):
            out = agent(query="q")
        assert kinds(out) == ["ProgramCall main", "Action ChainOfThought", "ProgramEnd main"]
        metrics = out.program_trace.steps[1].metrics
        assert metrics is not None
        assert (metrics.llm_calls, (metrics.total_tokens or 0) > 0) == (1, True)

    def test_tells_as_much_without_a_memory(self, memory: hs.StepMemory) -> None:
        decision = Decision("check", "Check", "Is it so?")
        program = GraphProgram(name="main", description="d")
        program.add(Action("think", "ChainOfThought", "Think", "Think hard"))
        program.add(decision)
        for source, target, label in (
            ("start", "think", ""),
            ("think", "check", ""),
            ("check", "end", "YES"),
            ("check", "think", "NO"),
        ):
            program.connect(source, target, **({"label": label} if label else {}))
        program.build()
        told: list[Any] = []
        for kept in (memory, None):
            agent = GraphInterpreter(
                [program], [ChainOfThought()], kept, commit_decision_steps=True
            )
            agent.nodes["main.check"] = dspy.ChainOfThought(agent.nodes["main.check"].signature)
            replies = [{"reasoning": "r", "answer": "42"}, {"reasoning": "why", "choice": "YES"}]
            with dspy.context(lm=scripted_lm(replies)):
                out = agent(query="q")
            assert out.finish_reason == "finished"
            think, check = out.program_trace.steps[1:3]
            assert (think.metadata or {})["reasoning"] == "r"
            assert (check.metadata or {})["reasoning"] == "why"
            assert (check.outputs or {})["choice"] == "YES"
            for step in (think, check):
                assert step.metrics is not None
                assert step.metrics.model_name == "scripted/model"
                assert (step.metrics.total_tokens or 0) > 0
            told.append(
                [
                    (s.step_type, s.metrics and s.metrics.total_tokens, s.metadata)
                    for s in out.program_trace.steps
                ]
            )
            assert not dspy.settings.get("callbacks")
        assert told[0] == told[1]

    def test_does_not_store_its_context_with_each_action(self, memory: hs.StepMemory) -> None:
        marker = "NEEDLE-IN-A-RESULT"
        nodes = [Action(f"n{i}", "Predict", "Work", f"Do part {i}") for i in range(6)]
        agent = GraphInterpreter(chain(*nodes), tools=[Predict()], memory=memory)
        replies = [{"answer": marker}, *[{"answer": "ok"}] * 5]
        with dspy.context(lm=scripted_lm(replies)):
            agent(query="q")
        holding = [step for step in memory.iter_steps() if marker in step.model_dump_json()]
        assert len(holding) == 1


class TestPrompts:
    def test_take_variables_and_leave_results(self) -> None:
        program = chain(
            Action("find", "Predict", "Find", "Find the city", var_out="city"),
            say("{{ objective }}: {{ city }} in {{ country }}", var_in=["city", "country"]),
            var_in=("country",),
        )
        agent = GraphInterpreter(program, tools=[Predict(), Speak()])
        with dspy.context(lm=scripted_lm([{"answer": "Paris"}])):
            out = agent(query="Where?", country="France")
        assert out.final_answer == "Where?: Paris in France"

    def test_may_need_no_model_at_all(self) -> None:
        agent = GraphInterpreter(chain(say("{{ query|length }} words")), tools=[Speak()])
        assert agent(query="abc").final_answer == "3 words"

    def test_show_the_last_steps_of_the_run(self) -> None:
        nodes = [Action(f"n{i}", "Predict", f"Purpose {i}", "Go") for i in range(4)]
        model = scripted_lm([{"answer": f"answer {i}"} for i in range(4)])
        agent = GraphInterpreter(chain(*nodes), tools=[Predict()], num_history=2)
        with dspy.context(lm=model):
            agent(query="q")
        last = request_text(model.requests[-1])
        assert "answer 1" in last
        assert "answer 2" in last
        assert "answer 0" not in last

    def test_show_no_steps_if_so_wished(self) -> None:
        nodes = [Action(f"n{i}", "Predict", f"Purpose {i}", "Go") for i in range(2)]
        model = scripted_lm([{"answer": "first"}, {"answer": "second"}])
        with dspy.context(lm=model):
            GraphInterpreter(chain(*nodes), tools=[Predict()], num_history=0)(query="q")
        assert "first" not in request_text(model.requests[-1])

    @pytest.mark.parametrize("shown", [False, True])
    def test_show_decisions_only_if_so_wished(self, shown: bool) -> None:
        model = scripted_lm([{"choice": "ANSWER"}, {"message": "hi"}])
        agent = GraphInterpreter(
            ask_back(), tools=[Speak(), AskUser()], commit_decision_steps=shown
        )
        with dspy.context(lm=model):
            out = agent(query="q")
        assert ("-> ANSWER" in request_text(model.requests[-1])) is shown
        assert "Decision" in kinds(out)

    @pytest.mark.parametrize(
        "prompt",
        [
            "{{ query.__class__ }}",
            "{{ query.upper }}",
            "{{ ''['__class__'] }}",
            "{{ query['__class__'] }}",
            "{{ query.__class__.__init__ }}",
            "{{ orders|map(attribute='__class__')|list }}",
            "{{ orders|map(attribute='append')|list }}",
            "{{ steps.steps }}",
        ],
    )
    def test_that_reach_for_more_fail_as_a_step(self, prompt: str) -> None:
        program = chain(say(prompt, var_in=["steps", "orders"]), var_in=("steps", "orders"))
        agent = GraphInterpreter(program, tools=[Speak()])
        out = agent(query="q", steps=hs.AgentStepList(steps=[]), orders=[[]])
        failing = out.program_trace.steps[1]
        assert out.finish_reason == "error"
        assert failing.status == "error"
        assert (failing.outputs or {})["error"]["type"] == "PromptError"

    def test_may_be_told_their_objective(self) -> None:
        agent = GraphInterpreter(chain(say("{{ query }} / {{ objective }}")), [Speak()])
        assert agent(query="q", objective="o").final_answer == "q / o"

    @pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
    def test_are_written_by_any_adapter(self, adapter: Any) -> None:
        agent = GraphInterpreter(ask_back(), [Speak(), AskUser(lambda _: "Paris")])
        with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES), adapter=adapter()):
            assert agent(query="weather").final_answer == "It rains in Paris."

    def test_read_keys_and_loop(self) -> None:
        text = "{% for o in orders %}{{ loop.index }}:{{ o.id }}/{{ o.n|default(0) }} {% endfor %}"
        agent = GraphInterpreter(
            chain(say(text, var_in=["orders"]), var_in=("orders",)), tools=[Speak()]
        )
        out = agent(query="", orders=[{"id": "A", "n": 2}, {"id": "B"}])
        assert out.final_answer == "1:A/2 2:B/0 "

    def test_without_a_variable_fail_as_a_step(self) -> None:
        program = chain(say("{{ city }}", var_in=["city"]), var_in=("city",))
        out = GraphInterpreter(program, tools=[Speak()])(query="q")
        assert out.finish_reason == "error"
        assert out.error is not None
        assert out.error.type == "PromptError"
        assert "'city'" in out.error.message
        assert kinds(out) == ["ProgramCall main", "Action Speak", "ProgramEnd main"]


class TestPrograms:
    def programs(self) -> list[GraphProgram]:
        helper = chain(say("from the helper", "inner"), name="helper")
        main = chain(Program("call", "Get help", "helper"), say("from main", "outer"))
        return [main, helper]

    @both
    def test_call_programs(self, call: Call) -> None:
        out = call(GraphInterpreter(self.programs(), tools=[Speak()]), query="q")
        assert kinds(out) == [
            "ProgramCall main",
            "ProgramCall helper",
            "Action Speak",
            "ProgramEnd helper",
            "Action Speak",
            "ProgramEnd main",
        ]
        main, helper, inner, end, outer, _ = out.program_trace.steps
        assert helper.program_id == str(main.id)
        assert inner.program_id == end.program_id == str(helper.id)
        assert outer.program_id == str(main.id)
        assert end.outputs == {"result": "from the helper"}
        assert out.final_answer == "from main"

    def test_may_be_given_as_text_or_by_name(self) -> None:
        main, helper = self.programs()
        texts = {"main": main.to_cypher(), "helper": helper.to_cypher()}
        assert GraphInterpreter(texts, tools=[Speak()])(query="q").final_answer == "from main"
        alone = GraphInterpreter(chain(say("text")).to_cypher(), tools=[Speak()])
        assert alone(query="q").final_answer == "text"

    def test_begin_where_they_are_told_to(self) -> None:
        agent = GraphInterpreter(self.programs(), tools=[Speak()], entrypoint="helper")
        assert agent(query="q").final_answer == "from the helper"

    def test_that_recurse_end_with_the_iterations(self) -> None:
        program = GraphProgram("main")
        program.add(Decision("more", "Go on?", "More?")).add(Program("again", "Recurse", "main"))
        program.connect("start", "more").connect("more", "again", label="YES")
        program.connect("more", "end", label="NO").connect("again", "end")
        agent = GraphInterpreter(program, max_iters=7)
        with dspy.context(lm=scripted_lm(lambda _: {"choice": "YES"})):
            out = agent(query="q")
        assert out.finish_reason == "max_iters"
        assert kinds(out).count("Decision") == 4
        assert kinds(out).count("ProgramCall main") == kinds(out).count("ProgramEnd main")

    def test_that_recurse_too_deep_fail(self) -> None:
        program = GraphProgram("main")
        program.add(Decision("more", "Go on?", "More?")).add(Program("again", "Recurse", "main"))
        program.connect("start", "more").connect("more", "again", label="YES")
        program.connect("more", "end", label="NO").connect("again", "end")
        agent = GraphInterpreter(program, max_iters=10_000)
        with dspy.context(lm=scripted_lm(lambda _: {"choice": "YES"})):
            out = agent(query="q")
        assert out.finish_reason == "error"
        assert out.error is not None
        assert out.error.type == "LimitReachedError"

    def test_that_are_changed_later_do_not_change_the_agent(self) -> None:
        program = chain(say("before"))
        agent = GraphInterpreter(program, [Speak()])
        program.nodes["say"] = say("after")
        assert agent(query="q").final_answer == "before"


class TestItsEnd:
    def test_is_max_iters_when_nodes_are_left(self) -> None:
        nodes = [say(str(i), f"n{i}") for i in range(5)]
        out = GraphInterpreter(chain(*nodes), tools=[Speak()], max_iters=3)(query="q")
        assert (out.finish_reason, out.final_answer) == ("max_iters", "")
        assert out.program_trace.steps[-1].status == "error"
        assert "main.n3" in (out.error.message if out.error else "")

    def test_is_finished_when_none_is_left(self) -> None:
        nodes = [say(str(i), f"n{i}") for i in range(5)]
        out = GraphInterpreter(chain(*nodes), tools=[Speak()], max_iters=5)(query="q")
        assert out.finish_reason == "finished"

    @both
    def test_is_error_when_a_tool_raises(self, call: Call, memory: hs.StepMemory) -> None:
        def refund(order: str) -> str:
            raise ValueError(f"no order {order}")

        action = Action("pay", "refund", "Refund", "A-17", disable_inference=True)
        agent = GraphInterpreter(
            chain(say("wait", "first"), action, say("never")), [Speak(), refund], memory
        )
        out = call(agent, query="q")
        assert (out.finish_reason, out.final_answer) == ("error", "")
        failing = out.program_trace.steps[2]
        assert failing.status == "error"
        assert failing.outputs == {"error": {"type": "ValueError", "message": "no order A-17"}}
        assert failing.arguments == {"order": "A-17"}
        assert list(memory.iter_steps()) == out.program_trace.steps

    def test_is_error_when_the_model_fails(self) -> None:
        with dspy.context(lm=scripted_lm([RuntimeError("no credit")])):
            out = GraphInterpreter(ask_back(), tools=[Speak(), AskUser()])(query="q")
        decision = out.program_trace.steps[1]
        assert (out.finish_reason, decision.status) == ("error", "error")
        assert "no credit" in (decision.outputs or {})["error"]["message"]

    @pytest.mark.parametrize("problem", [KeyboardInterrupt, asyncio.CancelledError])
    def test_is_the_callers_when_it_is_cancelled(
        self, problem: type[BaseException], memory: hs.StepMemory
    ) -> None:
        def stop() -> None:
            raise problem

        action = Action("stop", "stop", "Stop", disable_inference=True)
        agent = GraphInterpreter(chain(say("a"), action), [Speak(), stop], memory)
        with pytest.raises(problem):
            agent(query="q")
        steps = list(memory.iter_steps())
        assert [step.status for step in steps] == ["ok", "ok", "cancelled", "cancelled"]

    def test_keeps_its_steps_when_a_task_is_cancelled(self, memory: hs.StepMemory) -> None:
        async def wait() -> None:
            await asyncio.sleep(60)

        action = Action("wait", "wait", "Wait", disable_inference=True)
        agent = GraphInterpreter(chain(say("a"), action), [Speak(), wait], memory)

        async def cancelled() -> None:
            task = asyncio.create_task(agent.acall(query="q"))
            while len(list(memory.iter_steps())) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert [step.status for step in memory.iter_steps()] == [
            "ok",
            "ok",
            "cancelled",
            "cancelled",
        ]


class TestDecisions:
    def agent(self, *labels: str, **options: Any) -> GraphInterpreter:
        program = GraphProgram("main").add(Decision("pick", "Pick", "Which?"))
        program.connect("start", "pick")
        for label in labels:
            program.add(say(f"went {label}", f"to_{label}")).connect("pick", f"to_{label}", label)
            program.connect(f"to_{label}", "end")
        return GraphInterpreter(program, tools=[Speak()], **options)

    @pytest.mark.parametrize(
        "answer",
        [
            "ASK_USER",
            "Ask User",
            "ask-user",
            "ASK_USER.",
            '"ASK_USER"',
            "`ask_user`",
            "**Ask user**",
            "ASK_USER, since the date is missing",
            "ASK_USER because answer quality matters",
            "Answer: ask user",
            "My choice is ASK_USER.",
            "The date is missing.\nASK_USER",
            'I would pick "ask user" here',
        ],
    )
    def test_are_understood(self, answer: str) -> None:
        with dspy.context(lm=scripted_lm([{"choice": answer}])):
            out = self.agent("ANSWER", "ASK_USER", "ASK")(query="q")
        assert out.final_answer == "went ASK_USER"

    @pytest.mark.parametrize(
        "answer", ["", "maybe", "ANSWER or ASK_USER", "No, ANSWER is right", "neither of them"]
    )
    def test_that_mean_nothing_are_asked_again(self, answer: str) -> None:
        model = scripted_lm([{"choice": answer}, {"choice": "NO"}])
        with dspy.context(lm=model):
            out = self.agent("ANSWER", "ASK_USER", "NO")(query="q")
        assert out.final_answer == "went NO"
        assert "none of the options" in request_text(model.requests[1])
        assert "ANSWER, ASK_USER, NO" in request_text(model.requests[1])

    def test_are_asked_again_a_bounded_number_of_times(self) -> None:
        model = scripted_lm(lambda _: {"choice": "whatever"})
        with dspy.context(lm=model):
            out = self.agent("A", "B", max_corrections=3)(query="q")
        assert len(model.requests) == 4
        assert out.finish_reason == "error"
        decision = out.program_trace.steps[1]
        assert (decision.step_type, decision.status) == ("Decision", "error")
        assert (decision.outputs or {})["error"]["type"] == "DecisionError"
        assert "whatever" in (decision.outputs or {})["error"]["message"]

    @pytest.mark.parametrize("label", ["OTHERWISE", "ELSE", "Otherwise"])
    def test_fall_back_where_the_program_says_so(self, label: str) -> None:
        model = scripted_lm(lambda _: {"choice": "whatever"})
        with dspy.context(lm=model):
            out = self.agent("A", "B", label, max_corrections=0)(query="q")
        assert out.final_answer == f"went {label}"
        decision = out.program_trace.steps[1]
        assert decision.outputs == {"choice": label, "said": "whatever"}
        assert (decision.inputs or {})["options"] == ["A", "B"]
        assert label not in request_text(model.requests[0])

    def test_without_the_marks_of_the_format_are_read_all_the_same(self) -> None:
        with dspy.context(lm=scripted_lm(lambda _: "I think B.\nB")):
            assert self.agent("A", "B")(query="q").final_answer == "went B"

    def test_have_a_model_of_their_own(self) -> None:
        small, large = scripted_lm([{"choice": "ANSWER"}]), scripted_lm([{"message": "hi"}])
        agent = GraphInterpreter(ask_back(), tools=[Speak(), AskUser()], decision_lm=small)
        with dspy.context(lm=large):
            assert agent(query="q").final_answer == "hi"
        assert (len(small.requests), len(large.requests)) == (1, 1)

    def test_keep_their_model_out_of_what_is_saved(self, tmp_path: Path) -> None:
        def agent() -> GraphInterpreter:
            model = scripted_lm([{"choice": "ANSWER"}])
            tools = [Speak(lm=scripted_lm([{"message": "hi"}])), AskUser()]
            return GraphInterpreter(ask_back(), tools=tools, decision_lm=model)

        agent().save(tmp_path / "agent.json")
        loaded = agent()
        loaded.load(tmp_path / "agent.json")
        assert loaded(query="q").final_answer == "hi"
        assert loaded.deepcopy()(query="q").error is not None  # the scripts are used up

    def test_ask_the_model_that_set_lm_gave(self) -> None:
        own = scripted_lm([{"choice": "ANSWER"}, {"message": "own"}])
        agent = GraphInterpreter(ask_back(), [Speak(), AskUser()], decision_lm=scripted_lm([]))
        agent.set_lm(own)
        assert agent(query="q").final_answer == "own"


class TestWhatIsRefused:
    def test_an_unknown_tool(self) -> None:
        with pytest.raises(errors.UnknownToolError, match="'Speak'"):
            GraphInterpreter(chain(say("a")), tools=[Predict()])

    def test_an_unknown_entrypoint(self) -> None:
        with pytest.raises(errors.UnknownProgramError, match="'other'"):
            GraphInterpreter(chain(say("a")), tools=[Speak()], entrypoint="other")

    def test_an_unknown_program(self) -> None:
        with pytest.raises(errors.InvalidProgramError, match="'nowhere'"):
            GraphInterpreter(chain(Program("call", "Call", "nowhere")))

    def test_a_prompt_that_is_no_template(self) -> None:
        with pytest.raises(errors.InvalidProgramError, match="line 1"):
            GraphInterpreter(chain(say("{% for %}")), tools=[Speak()])

    def test_a_program_that_is_not_sound(self) -> None:
        with pytest.raises(errors.InvalidProgramError):
            GraphInterpreter(GraphProgram("main"))

    @pytest.mark.parametrize(
        "options", [{"max_iters": 0}, {"num_history": -1}, {"max_corrections": -1}]
    )
    def test_numbers_that_mean_nothing(self, options: dict[str, int]) -> None:
        with pytest.raises(errors.InvalidSettingError):
            GraphInterpreter(chain(say("a")), tools=[Speak()], **options)  # pyright: ignore[reportArgumentType]

    def test_two_tools_of_one_name(self) -> None:
        with pytest.raises(errors.InvalidSettingError, match="two tools"):
            GraphInterpreter(chain(say("a")), tools=[Speak(), Speak()])

    def test_what_is_no_memory(self) -> None:
        with pytest.raises(errors.InvalidMemoryError):
            GraphInterpreter(chain(say("a")), tools=[Speak()], memory="steps.db")  # pyright: ignore[reportArgumentType]


class TestTheModule:
    def agent(self, **options: Any) -> GraphInterpreter:
        return GraphInterpreter(ask_back(), [Speak(), AskUser(lambda _: "Paris")], **options)

    def test_names_its_predictors_after_the_nodes(self) -> None:
        names = ["nodes['main.clear']", "nodes['main.ask']", "nodes['main.answer']"]
        assert [name for name, _ in self.agent().named_predictors()] == names

    def test_answers_when_deep_copied(self) -> None:
        for copied in (copy.deepcopy(self.agent()), self.agent().deepcopy()):
            with dspy.context(lm=scripted_lm(ASK_BACK_REPLIES)):
                assert copied(query="q").final_answer == "It rains in Paris."

    def test_keeps_what_it_learned_when_saved_and_loaded(self, tmp_path: Path) -> None:
        agent = self.agent()
        predictor: Any = agent.nodes["main.answer"]
        predictor.signature = predictor.signature.with_instructions("Answer in French.")
        agent.save(tmp_path / "agent.json")
        loaded = self.agent()
        loaded.load(tmp_path / "agent.json")
        model = scripted_lm(ASK_BACK_REPLIES)
        with dspy.context(lm=model):
            loaded(query="q")
        assert "Answer in French." in str(model.requests[-1].system)
        assert "Answer in French." not in str(model.requests[0].system)

    def test_goes_on_with_a_session_without_changing_it(self) -> None:
        agent = GraphInterpreter(chain(say("{{ query }}!")), tools=[Speak()])
        first = agent(query="one", colour="red")
        second = agent(query="two", session=first.session)
        assert [message.content for message in second.session.chat_history] == [
            "one",
            "one!",
            "two",
            "two!",
        ]
        assert second.session.variables == {"colour": "red"}
        assert len(first.session.chat_history) == 2

    def test_keeps_24_runs_on_8_threads_apart(self, memory: hs.StepMemory) -> None:
        program = chain(
            Action("aim", "UpdateObjective", "Aim", "aim {{ query }}", disable_inference=True),
            Action("think", "Predict", "Think", "about {{ query }}", var_out="thought"),
            say("{{ objective }} / {{ thought }}", var_in=["thought"]),
        )
        model = scripted_lm(_echo_query, delay_seconds=0.002)
        agent = GraphInterpreter(program, [UpdateObjective(), Predict(), Speak()], memory)

        def run(number: int) -> AgentOutput:
            with dspy.context(lm=model):
                return agent(query=f"q{number}")

        with ThreadPoolExecutor(8) as pool:
            outs = list(pool.map(run, range(24)))
        assert [out.final_answer for out in outs] == [
            f"aim q{n} / thought about q{n}" for n in range(24)
        ]
        for out in outs:
            run_id = out.program_trace.steps[0].run_id
            assert run_id is not None
            assert memory.run(run_id).steps == out.program_trace.steps
        assert len({out.program_trace.steps[0].run_id for out in outs}) == 24

    def test_runs_many_at_once_in_one_loop(self) -> None:
        program = chain(
            Action("think", "Predict", "Think", "about {{ query }}", var_out="thought"),
            say("{{ thought }}", var_in=["thought"]),
        )
        agent = GraphInterpreter(program, [Predict(), Speak()])

        async def several() -> list[AgentOutput]:
            return await asyncio.gather(*(agent.acall(query=f"q{n}") for n in range(8)))

        with dspy.context(lm=scripted_lm(_echo_query, delay_seconds=0.005)):
            outs = asyncio.run(several())
        assert [out.final_answer for out in outs] == [f"thought about q{n}" for n in range(8)]

    def test_takes_tools_of_ones_own(self) -> None:
        class Shout(GraphTool):
            """Says it loud."""

            def use(self, use: ToolUse) -> str:
                return use.arguments["answer"].upper()

        program = chain(Action("shout", "Shout", "Shout", "hello", disable_inference=True))
        assert GraphInterpreter(program, tools=[Shout()])(query="q").final_answer == "HELLO"


def _echo_query(request: Any) -> dict[str, str]:
    text = request_text(request)
    prompt = text.split("[[ ## prompt ## ]]")[1].split("[[ ##")[0].split("\n\n")[0].strip()
    return {"answer": f"thought {prompt}"}


def test_a_scripted_model_is_used_up_exactly() -> None:
    model = ScriptedLM(ASK_BACK_REPLIES)
    agent = GraphInterpreter(ask_back(), tools=[Speak(), AskUser(lambda _: "Paris")])
    with dspy.context(lm=model):
        agent(query="q")
    assert len(model.requests) == len(ASK_BACK_REPLIES)


def test_the_interpreter_is_measured_against_its_own_predictors() -> None:
    result = interpreter_cost.measure(rounds=8, nodes=10)
    assert list(result["times"]) == ["bare predictors", "agent", "recorded", "stored"]
    assert all(times["wall_ms"] > 0 for times in result["times"].values())
    # It hears what its models cost. A ratio to what DSPy itself takes in the same run: 1.8 quiet.
    bare = result["times"]["bare predictors"]["cpu_ms_least"]
    assert result["interpreter"]["cpu_ms_least"] < 4 * bare
