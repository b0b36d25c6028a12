"""What callers get wrong: inputs that are none, prompts that never end, parts of the wrong kind.

Each is refused with an error of this package that says what was given and what is wanted.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time
from typing import Any

import pytest
from agent_programs import both, chain, say

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.programs.graph.graph_program import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.graph.interpreter import GraphInterpreter
from hybridagi_steps.programs.tools import AskUser, Speak


class TestCalls:
    @both
    @pytest.mark.parametrize("query", [None, 5, [1], {}])
    def test_ask_a_text(self, call: Any, query: Any) -> None:
        with pytest.raises(errors.InvalidQueryError, match=type(query).__name__):
            call(GraphInterpreter(chain(say("hi")), [Speak()]), query=query)

    @pytest.mark.parametrize("session", ["zzz", {}, 0])
    def test_go_on_with_a_session(self, session: Any) -> None:
        agent = GraphInterpreter(chain(say("hi")), [Speak()])
        with pytest.raises(errors.InvalidSettingError, match=r"session=out\.session"):
            agent(query="q", session=session)

    def test_have_an_objective_that_is_a_text(self) -> None:
        agent = GraphInterpreter(chain(say("hi")), [Speak()])
        with pytest.raises(errors.InvalidSettingError, match="objective is a text, not int"):
            agent(query="q", objective=3)


class TestParts:
    @pytest.mark.parametrize("tools", [None, Speak(), "Speak", 5])
    def test_tools_are_a_list(self, tools: Any) -> None:
        with pytest.raises(errors.InvalidSettingError, match="tools are a list"):
            GraphInterpreter(chain(say("hi")), tools)

    @pytest.mark.parametrize("tool", [Speak, AskUser])
    @pytest.mark.parametrize("callback", ["hi", 5])
    def test_callbacks_are_functions(self, tool: Any, callback: Any) -> None:
        with pytest.raises(errors.InvalidSettingError, match=f"{tool.__name__} is a function"):
            tool(callback)

    @pytest.mark.parametrize(
        "made",
        [
            lambda: GraphProgram.from_cypher(None),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram(None),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram("main", description=None),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram("main", var_in="topic"),
            lambda: GraphProgram("main", var_in=[5]),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram("main").add(None),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram("main").add(GraphProgram("x")),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram("main").connect(None, "end"),  # pyright: ignore[reportArgumentType]
            lambda: GraphProgram("main").connect("start", "end", label=5),  # pyright: ignore[reportArgumentType]
            lambda: Action(5, "Speak", "Say"),  # pyright: ignore[reportArgumentType]
            lambda: Action("a", "Speak", "Say", var_in="topic"),  # pyright: ignore[reportArgumentType]
            lambda: Decision("a", None, "Is it?"),  # pyright: ignore[reportArgumentType]
            lambda: Program("a", "Call"),  # pyright: ignore[reportCallIssue]
        ],
    )
    def test_of_programs_are_of_their_kind(self, made: Any) -> None:
        with pytest.raises(errors.ProgramError) as caught:
            made()
        assert "pydantic" not in str(caught.value)

    def test_of_programs_say_which_value_is_wrong(self) -> None:
        with pytest.raises(errors.ProgramError, match=r"'var_in' of an Action .* 'topic'"):
            Action("a", "Speak", "Say", var_in="topic")  # pyright: ignore[reportArgumentType]

    def test_an_empty_id_is_a_problem_of_the_program(self) -> None:
        with pytest.raises(errors.InvalidProgramError, match="the id of the Action '' is empty"):
            chain(say("hi", "")).build()


class TestEndlessPrompts:
    @pytest.mark.parametrize(
        "prompt",
        [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(99999) %}{% set b = range(99999)|list %}{% endfor %}",
            "{% for a in [1, 2] recursive %}{% if loop.depth < 9 %}{{ loop(range(99)) }}{% endif %}"
            "{% endfor %}",
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
            "{{ m(40) }}",
        ],
    )
    def test_are_stopped(self, prompt: str) -> None:
        began = time.perf_counter()
        out = GraphInterpreter(chain(say(prompt)), [Speak()])(query="q")
        assert time.perf_counter() - began < 5
        assert out.error is not None
        assert out.error.type == "PromptError"
        assert "turns" in out.error.message

    def test_long_loops_are_no_endless_ones(self) -> None:
        prompt = (
            "{% for a in range(300) %}{% for b in range(300) %}{% endfor %}{% endfor %}"
            "{% for a in 'xyz' %}{{ loop.index }}{{ loop.length }}{{ loop.last }} {% endfor %}"
            "{% for a in [[[]]] recursive %}({{ loop(a) }}){% endfor %}"
        )
        out = GraphInterpreter(chain(say(prompt)), [Speak()])(query="q")
        assert out.final_answer == "13False 23False 33True (())"


class TestAnswersOfTools:
    def run(self, tool: Any, name: str) -> hs.AgentOutput:
        action = Action("use", name, "Use it", "go", disable_inference=True, var_out="got")
        return GraphInterpreter(chain(action), [tool])(query="q")

    def test_a_user_who_gives_none_gave_no_answer(self) -> None:
        out = self.run(AskUser(lambda question: None), "AskUser")
        assert out.finish_reason == "error"
        assert "None" in out.error.message  # pyright: ignore[reportOptionalMemberAccess]
        assert [message.role for message in out.session.chat_history] == ["user", "assistant"]

    @both
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_what_a_generator_yields_is_a_list(self, call: Any, asynchronous: bool) -> None:
        def count() -> Any:
            yield from range(3)

        async def acount() -> Any:
            for number in range(3):
                yield number

        name = "acount" if asynchronous else "count"
        action = Action("use", name, "Use it", "go", disable_inference=True, var_out="got")
        out = call(GraphInterpreter(chain(action), [acount, count]), query="q")
        assert out.session.variables["got"] == [0, 1, 2]

    def test_a_generator_without_an_end_is_stopped(self) -> None:
        def forever() -> Any:
            while True:
                yield "more"

        out = self.run(forever, "forever")
        assert out.error is not None
        assert out.error.type == "LimitReachedError"

    def test_an_unknown_program_names_none_that_agents_may_not_touch(self) -> None:
        from hybridagi_steps.programs.tools import CallGraphProgram

        action = Action("use", "CallGraphProgram", "Call", "nothing", disable_inference=True)
        programs = [chain(action), chain(say("hi"), name="greet")]
        out = GraphInterpreter(programs, [CallGraphProgram(), Speak()])(query="q")
        assert out.error is not None
        assert out.error.type == "UnknownProgramError"
        assert "greet" in out.error.message
        assert "main" not in out.error.message
