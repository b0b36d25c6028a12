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


def loops(*heads: str, body: str = "") -> str:
    """Return a prompt of loops inside of each other around a body."""
    return "".join(f"{{% for {head} %}}" for head in heads) + body + "{% endfor %}" * len(heads)


def _talk(prompt: str, **values: Any) -> hs.AgentOutput:
    """Return what an agent answers whose one prompt uses `values`."""
    program = chain(say(prompt, var_in=list(values)), var_in=tuple(values))
    return GraphInterpreter(program, [Speak()])(query="q", **values)


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
            # loops that multiply
            "{% for a in 'xxxx' %}{% for b in 'xxxx' %}{% endfor %}{% endfor %}",
            "{% for a in query %}{% for b in query %}{% endfor %}{% endfor %}",
            loops("a in query", "b in a", "c in a"),
            "{% for a in query %}{% for b in (a, a, a) %}{% endfor %}{% endfor %}",
            "{% for a in query %}{% for b in [a, a, a] %}{% endfor %}{% endfor %}",
            "{% for a in query %}{% for b in loop.previtem %}{% endfor %}{% endfor %}",
            "{% for a in query %}{% for b in a.x|default('xxxx') %}{% endfor %}{% endfor %}",
            "{% for a in query %}{% for b in a|tojson %}{% endfor %}{% endfor %}",
            "{% for a in query %}{% for b in a|batch(9999, 'x') %}{% endfor %}{% endfor %}",
            loops("a in query", "b in a|map(attribute='x', default='xx')"),
            "{% for a in query %}{% for b in a|groupby('x', 'xx') %}{% endfor %}{% endfor %}",
            loops("a in query", "b in a.x", body="{% else %}" + loops("c in b")),
            "{% for a in query if query|upper == a %}{% endfor %}",
            "{% for a in query %}{% if query|upper == a %}{% endif %}{% endfor %}",
            "{% for a in query %}{% if query[1:] == a %}{% endif %}{% endfor %}",
            "{% for a in query %}{% if query ~ a == a %}{% endif %}{% endfor %}",
            "{% for a in query %}{% if a in objective %}{% endif %}{% endfor %}",
            "{% for a in query %}{% if query == objective %}{% endif %}{% endfor %}",
            # filters that multiply
            "{{ query|replace('', 'y' * 9) }}",
            "{{ query" + "|replace('x', 'yyyyyyyyyy')" * 9 + " }}",
            "{{ (query|replace('x', 'yyyyyyyyyyyy') ~ 'x')|replace('x', 'yyyyyyyyyyyy') }}",
            "{{ query" + "|tojson" * 30 + " }}",
            "{{ query" + "|list|string" * 30 + " }}",
            "{{ (query|list ~ '')|list }}",
            "{{ query" + "|join('----------')" * 9 + " }}",
            "{{ query|join(d='----------')|replace(old='-', new='----------') }}",
            "{{ query|replace(*query) }}",
            "{{ query|map('replace', 'x', 'yy')|list }}",
            "{{ query|join('" + "x" * 101 + "') }}",
        ],
    )
    def test_are_refused_when_they_are_made(self, prompt: str) -> None:
        began = time.thread_time()
        with pytest.raises(errors.InvalidProgramError, match="the prompt of 'say', line 1: "):
            chain(say(prompt)).build()
        assert time.thread_time() - began < 2  # nothing of it is carried out

    @pytest.mark.parametrize(
        "prompt",
        [
            "{{ query|round(8, 'ceil') }}",
            "{% if '%999999999d' is divisibleby(3) %}{% endif %}",
            "{% if '%999999999d' is even %}{% endif %}",
            "{{ [1, 2]|round(8, 'ceil') }}",
        ],
    )
    def test_count_with_numbers_alone(self, prompt: str) -> None:
        error = _talk(prompt).error
        assert error is not None
        assert error.type == "PromptError"
        assert "is no number" in error.message

    @pytest.mark.parametrize(
        "prompt",
        [
            "{{ text|list|replace(\"'\", '" + "y" * 49 + "') }}",
            "{{ text|join('" + "y" * 60 + "') }}",
            "{{ text|e|tojson }}",
            "{% for a in text %}{{ text }}{% endfor %}",
        ],
    )
    def test_make_no_gigabytes(self, prompt: str) -> None:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        error = _talk(prompt, text="<" * 1_000_000).error
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 400_000  # KiB
        assert error is not None
        assert error.type == "PromptError"
        assert "grew over 2,000,000 characters" in error.message

    @pytest.mark.parametrize(
        ("prompt", "text"),
        [
            ("{{ query|upper }}{{ query|trim|title }}", "QQ"),
            ("{{ 'a' ~ 1 ~ none }}{{ orders[-1].id }}", "a1NoneB"),
            ("{{ {'a': 1} if false else orders[:1]|tojson }}", None),
            ("{{ orders[:1]|tojson }}", '[{"id": "A", "n": 2}]'),
            ("{{ orders|map(attribute='id')|join('-') }}", "A-B"),
            ("{% for b in orders|batch(1) %}{{ b|length }};{% endfor %}", "1;1;"),
            (
                loops("o in orders", "k, v in o|items", body="{{ k }}{{ v }}"),
                "idAn2idB",
            ),
            (
                loops("o in orders if o.id in ['B', 'C']", body="{{ loop.index }}{{ o.id|lower }}"),
                "1b",
            ),
            (
                loops("o in orders", body="{% if o.id == wanted %}{{ query }}{% endif %}"),
                "q",
            ),
            (
                "{{ orders|selectattr('n', 'defined')|sum(attribute='n') }}{{ 2.345|round(1) }}",
                "22.3",
            ),
            (
                loops("c in query", body="{% if loop.index is odd %}{{ loop.last }}{% endif %}"),
                "True",
            ),
            ("{{ query|replace('q', 'a & b')|replace('&', '+')|truncate(9) }}", "a + b"),
            ("{% for a in none or [] %}{% endfor %}", None),
        ],
    )
    def test_do_what_prompts_do(self, prompt: str, text: str | None) -> None:
        values: dict[str, Any] = {"orders": [{"id": "A", "n": 2}, {"id": "B"}], "wanted": "A"}
        if text is None:
            with pytest.raises(errors.InvalidProgramError, match="line 1"):
                _talk(prompt, **values)
        else:
            assert _talk(prompt, **values).final_answer == text

    @pytest.mark.parametrize(
        ("prompt", "construct"),
        [
            ("{{ query.get('x', 0) }}", "no calls such as `x.get()`"),
            ("{{ '{:>9}'.format(query) }}", "no calls such as"),
            ("{{ 1 + 1 }}", "no arithmetic; compute the value before and give it as an input"),
            ("{{ '%5d' % 3 }}", "no arithmetic"),
            ("{{ -query }}", "are constants"),
            ("{% set x = query %}{{ x }}", "no `set`; write the expression where"),
            ("{% set x %}{{ query }}{% endset %}", "no `set`"),
            ("{% macro m() %}{% endmacro %}", "no macros"),
            ("{% filter upper %}{% endfilter %}", "no `filter` blocks"),
            ("{% include 'other' %}", "no `include`"),
            ("{{ {'a': query} }}", "no dicts"),
            ("{{ [query]|join }}", "lists are constants"),
            ("{% for a in query recursive %}{% endfor %}", "no recursive loops"),
            ("{{ query|tojson(indent=2) }}", "`tojson` takes no"),
            ("{% for a in [1, 2] %}{% endfor %}", "goes through a variable"),
        ],
    )
    def test_that_use_more_of_jinja_are_refused_with_line_and_construct(
        self, prompt: str, construct: str
    ) -> None:
        with pytest.raises(errors.InvalidProgramError, match=f"line 2: .*{re.escape(construct)}"):
            chain(say("Hello\n" + prompt)).build()

    @pytest.mark.parametrize(
        "name", ["pprint", "striptags", "wordwrap", "center", "format", "indent", "random", "safe"]
    )
    def test_filters_that_are_not_on_the_list_are_named(self, name: str) -> None:
        with pytest.raises(errors.InvalidProgramError, match=f"No filter named '{name}'"):
            GraphInterpreter(chain(say("{{ query|%s }}" % name)), [Speak()])  # noqa: UP031 - braces

    def test_long_loops_are_no_endless_ones(self) -> None:
        prompt = loops("a in rows", "b in a if b", body="{{ b }}")
        rows = [[0] * 300] * 299 + [[7]]
        assert _talk(prompt, rows=rows).final_answer == "7"

    @pytest.mark.parametrize("depth", [30, 300, 100_000])
    def test_nested_deeper_than_python_reads_are_refused(self, depth: int) -> None:
        loops = "{% for x in query %}" + "{% for x in x %}" * depth + "{% endfor %}" * (depth + 1)
        for prompt in (
            loops,
            "{{ query" + "|upper" * 10 * depth + " }}",
            "{{ 1" + "0" * 5000 + " }}",
        ):
            with pytest.raises(errors.InvalidProgramError, match="line 1"):
                chain(say(prompt)).build()


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
