"""What callers get wrong: inputs that are none, prompts that never end, parts of the wrong kind.

Each is refused with an error of this package that says what was given and what is wanted.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import re
import resource
import time
from typing import Any

import pytest
from agent_programs import both, chain, say

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
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


@pytest.fixture(scope="module")
def stopped_seconds() -> float:
    """CPU seconds in which what is stopped has ended: those of 600 million turns of a bare loop."""
    began = time.thread_time()
    for _ in range(5_000_000):
        pass
    return 120 * (time.thread_time() - began)


class TestEndlessPrompts:
    @pytest.mark.parametrize(
        "prompt",
        [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(99999) %}{% set b = 'x'.split() %}{% endfor %}{{ 0 }}" * 3,
            "{% for a in [1, 2] recursive %}{% if loop.depth < 9 %}{{ loop(range(99)) }}{% endif %}"
            "{% endfor %}",
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
            "{{ m(40) }}",
            "{{ range(99999)|reject('in', range(99999)|list)|list|length }}",
        ],
    )
    def test_are_stopped(self, prompt: str, stopped_seconds: float) -> None:
        began = time.thread_time()
        out = GraphInterpreter(chain(say(prompt)), [Speak()])(query="q")
        assert time.thread_time() - began < stopped_seconds
        assert out.error is not None
        assert out.error.type == "PromptError"
        assert "turns" in out.error.message

    @pytest.mark.parametrize(
        "prompt",
        [
            "{{ '%1000000000d' % 1 }}",
            "{{ '%*d' % (1000000000, 1) }}",
            "{{ '%.1000000000f' % 1 }}",
            "{{ '%(()5s)1000000000d' % {'()5s': 1} }}",
            "{{ ('%1000000000d'.encode() % 1)|length }}",
            "{{ '%1000000000d'|format(1) }}",
            "{{ '{:>1000000000}'.format(1) }}",
            "{{ '{:>{}}'.format(1, 1000000000) }}",
            "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
            "{{ ('{:>1000000000}'|safe).format(1) }}",
            "{% set f = '{:>1000000000}'.format %}{{ f(1) }}",
            "{{ 'x'|center(1000000000)|length }}",
            "{{ 'x'|center(width=1000000000)|length }}",
            "{{ ['x']|map('center', 1000000000)|list|length }}",
            "{{ 'x'.ljust(10**9)|length }}",
            "{{ 'x'.rjust(1000000000)|length }}",
            "{{ '1'.zfill(1000000000)|length }}",
            "{{ '\t'.expandtabs(1000000000)|length }}",
            "{{ (5).to_bytes(1000000000, 'little')|length }}",
            "{{ 'x'|indent(1000000000, true)|length }}",
            "{{ ('x' * 10000) * 10000 }}",
            "{{ ('x' * 10000)|replace('', 'y' * 10000)|length }}",
            "{{ ('x' * 10000).replace('x', 'y' * 10000)|length }}",
            "{{ ('x' * 10000).translate({120: 'y' * 10000})|length }}",
            "{{ ('x' * 10000)|join('y' * 10000)|length }}",
            "{{ ('y' * 10000).join(range(99999)|map('string'))|length }}",
            "{{ [1]|tojson(indent=1000000000)|length }}",
            "{{ [1]|batch(1000000000, 'x')|list|length }}",
            "{{ [1]|slice(1000000000)|list|length }}",
            "{{ 1|round(1000000000, 'ceil') }}",
            "{{ (([[0]] * 10000) * 100)|sum(start=[])|length }}",
            "{% set a = 'x' * 10000 %}" + "{% set a = a ~ a %}" * 20 + "{{ a|length }}",
            "{% set a = 'x' * 10000 %}" + "{% set a = a + a %}" * 20 + "{{ a|length }}",
            "{% set a = 'x' * 10000 %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 20 + "{{ 0 }}",
            "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}{% set a = 'x' * 10000 %}"
            + "{% set a = m(a) %}" * 20,
            "{% set a = 'x' * 10000 %}" + "{% set a = '{0}{0}'.format(a) %}" * 20,
            "{% set a = 'x' * 10000 %}" + "{% set a = '%(a)s%(a)s' % {'a': a} %}" * 20,
            "{% set a = [0] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ a }}",
            "{% set a = [0] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ (a ~ '')|length }}",
            "{% set a = [0] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ a|string|length }}",
            "{% set a = [0] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ ('%s' % a)|length }}",
            "{% set a = [0] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ '{!r}'.format(a) }}",
            "{% set a = [0] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ {'a': a}.values() }}",
            "{% set n = namespace(a=[0]) %}" + "{% set n.a = [n.a, n.a, n.a] %}" * 20 + "{{ n }}",
            "{% set n = namespace(a=[]) %}{% for i in range(99999) %}"
            "{% set n.a = [n.a, 'x' * 10000 ~ i] %}{% endfor %}",
            "{% for a in range(99999) %}{% set b = range(99999)|list %}{% endfor %}",
            "{% set a, b = [0], [0] %}"
            + "{% set a, b = [a, a, a, a], [b, b, b, b] %}" * 20
            + "{{ a == b }}",
            "{% set a = {'k': 0} %}" + "{% set a = {'k': a, 'l': a} %}" * 24 + "{{ a == a.k }}",
            "{% set a = [0] %}" + "{% set a = a + a %}" * 30 + "{{ a|length }}",
            "{% set n = namespace(a=range(9999)|list) %}{% for i in range(400) %}"
            "{% set n.a = [n.a] %}{% endfor %}{{ n.a|tojson(indent=9)|length }}",
            "{% set n = namespace() %}{% set n.a = n %}{% set n.b = n %}{{ n }}",
            "{{ ([[0]] * 100000)|sum(start=[])|length }}",
            "{{ ('{:1000}' * 90000).format(*range(90000)) }}",
            "{{ ('%1000d' * 90000) % range(90000)|list }}",
            "{{ ('x' * 100000)|replace('', 'y' * 100000)|length }}",
        ],
    )
    def test_make_no_gigabytes(self, prompt: str, stopped_seconds: float) -> None:
        began, most = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out = GraphInterpreter(chain(say(prompt)), [Speak()])(query="q")
        assert time.thread_time() - began < stopped_seconds
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 400_000  # KiB
        assert out.error is not None
        assert out.error.type == "PromptError"
        assert re.search(r"would make some|over 134,217,728 bytes|too large", out.error.message)

    @pytest.mark.parametrize(
        ("prompt", "shown"),
        [
            ("{{ '%5d|%s' % (3, query) }}", "    3|q"),
            ("{{ '%d of %d'|format(5000000, 3000000) }}", "5000000 of 3000000"),
            ("{{ '{:,}|{:>4}|{!r}'.format(123456789, 1, query) }}", "123,456,789|   1|'q'"),
            ("{{ '{a}'.format_map({'a': 1}) }}{{ query.ljust(3) }}|", "1q  |"),
            ("{{ query|center(5) }}|{{ 'a\nb'|indent(2) }}", "  q  |a\n  b"),
            ("{{ ['a', 'b']|map('upper')|join('-') }}{{ ','.join('xy') }}", "A-Bx,y"),
            ("{{ 'a' ~ 1 ~ none }}{{ [1] + [2] }}{{ 2 ** 10 }}", "a1None[1, 2]1024"),
            ("{{ {'a': 1}|tojson(indent=2) }}", '{\n  "a": 1\n}'),
            ("{% for b in [1, 2, 3]|batch(2) %}{{ b|join }};{% endfor %}", "12;3;"),
            ("{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{% endfor %}{{ [1, 2]|sum }}", "a13"),
            ("{% set x %}a{{ query }}{% endset %}{{ x|upper }}{{ 2.345|round(1) }}", "AQ2.3"),
            ("{{ (('1' * 99999 ~ ' %s') % 1)|length }}", "100001"),
            ("{{ ('y' * 10000)|length }}{{ ('%s' % ('y' * 9999))|length }}", "100009999"),
        ],
    )
    def test_do_what_prompts_do(self, prompt: str, shown: str) -> None:
        assert GraphInterpreter(chain(say(prompt)), [Speak()])(query="q").final_answer == shown

    @pytest.mark.parametrize("name", ["pprint", "striptags", "urlize", "wordwrap", "xmlattr"])
    def test_filters_that_are_not_on_the_list_are_named(self, name: str) -> None:
        with pytest.raises(errors.InvalidProgramError, match=f"No filter named '{name}'"):
            GraphInterpreter(chain(say("{{ query|%s }}" % name)), [Speak()])  # noqa: UP031 - braces

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

        action = Action("use", "CallGraphProgram", "Call", "nothing", [], "got", True)
        programs = [chain(action), chain(say("hi"), name="greet")]
        out = GraphInterpreter(programs, [CallGraphProgram(), Speak()])(query="q")
        assert out.session.variables["got"].endswith("known are greet.")
