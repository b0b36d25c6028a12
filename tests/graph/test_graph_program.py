"""Graph programs: building finds every mistake at once, in words that say where it is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.errors import InvalidProgramError, ProgramError
from hybridagi_steps.graph.nodes import Edge
from hybridagi_steps.programs import (
    Action,
    Control,
    Decision,
    GraphProgram,
    Program,
    check_programs,
)


def speak(
    node_id: str,
    prompt: str = "Say it",
    *,
    var_in: Sequence[str] = (),
    var_out: str | None = None,
) -> Action:
    return Action(node_id, "Speak", "Say it", prompt, [*var_in], var_out)


def chain(*nodes: Action | Decision | Program, name: str = "main") -> GraphProgram:
    """Return a program of nodes one after the other."""
    program = GraphProgram(name)
    for node in nodes:
        program.add(node)
    ids = ["start", *(node.id for node in nodes), "end"]
    for source, target in pairwise(ids):
        program.connect(source, target)
    return program


def asking() -> GraphProgram:
    """Return a sound program with a loop."""
    program = GraphProgram("main", "Answer, or ask back")
    program.add(Decision("clear", "Check", "Is it clear?"))
    program.add(speak("answer")).add(Action("ask", "AskUser", "Clarify", "Ask"))
    program.connect("start", "clear").connect("clear", "answer", label="YES")
    program.connect("clear", "ask", label="NO").connect("ask", "clear")
    return program.connect("answer", "end")


def problems(program: GraphProgram, programs: list[GraphProgram] | None = None) -> list[str]:
    with pytest.raises(InvalidProgramError) as caught:
        program.build(programs)
    assert caught.value.name == program.name
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def only(found: list[str]) -> str:
    """Return the only problem; one mistake makes one line."""
    assert len(found) == 1, found
    return found[0]


class TestSoundPrograms:
    def test_build_returns_the_program(self) -> None:
        program = asking()
        assert program.build() is program

    def test_a_program_can_be_asked_for_its_ways(self) -> None:
        program = asking()
        assert program.next("start") == "clear"
        assert program.choices("clear") == {"YES": "answer", "NO": "ask"}

    def test_two_labels_may_lead_to_one_node_and_both_stay(self) -> None:
        program = GraphProgram("main").add(Decision("d", "Why", "Which?")).add(speak("a"))
        program.connect("start", "d").connect("d", "a", label="ONE").connect("d", "a", label="TWO")
        program.connect("a", "end").build()
        assert program.choices("d") == {"ONE": "a", "TWO": "a"}

    def test_a_decision_may_lead_back_to_itself(self) -> None:
        program = GraphProgram("main").add(Decision("wait", "Wait", "Is it done?"))
        program.connect("start", "wait").connect("wait", "wait", label="NO")
        assert program.connect("wait", "end", label="YES").build()

    def test_an_id_is_taken_once(self) -> None:
        with pytest.raises(ProgramError, match="a node 'answer' already"):
            asking().add(speak("answer"))
        with pytest.raises(ProgramError, match="a node 'start' already"):
            asking().add(Control("start"))

    def test_programs_are_equal_when_they_say_the_same(self) -> None:
        assert asking() == asking()
        assert asking() != asking().connect("ask", "answer")
        assert asking() != "main"

    def test_a_program_can_be_loaded_without_dspy_or_a_parser(self) -> None:
        code = (
            "import sys; from hybridagi_steps.programs import GraphProgram, Action\n"
            "GraphProgram('m').add(Action('a', 'Speak', 'p', '{{ query }}')).connect('start', 'a')"
            ".connect('a', 'end').build().to_cypher()\n"
            "assert not {'dspy', 'lark', 'numpy'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestGraphMistakes:
    def test_an_empty_program(self) -> None:
        assert "empty" in only(problems(GraphProgram("main")))
        assert "empty" in only(problems(GraphProgram("main").connect("start", "end")))

    def test_an_unreachable_node(self) -> None:
        program = asking().add(speak("alone")).connect("alone", "end")
        assert "'alone' is unreachable" in only(problems(program))

    def test_a_dead_end(self) -> None:
        program = GraphProgram("main").add(speak("a")).add(speak("b"))
        program.connect("start", "a").connect("a", "b")
        assert "'b' is a dead end" in only(problems(program))

    def test_a_start_that_leads_nowhere(self) -> None:
        found = problems(GraphProgram("main").add(speak("a")).connect("a", "end"))
        assert any("'start' is a dead end" in problem for problem in found)

    def test_a_loop_without_an_exit(self) -> None:
        program = GraphProgram("main").add(speak("a")).add(speak("b"))
        program.connect("start", "a").connect("a", "b").connect("b", "a")
        found = only(problems(program))
        assert "the loop has no exit" in found
        assert "'a', 'b'" in found

    def test_a_branch_that_never_comes_back(self) -> None:
        program = asking().add(speak("spin")).connect("clear", "spin", label="MAYBE")
        assert "from 'spin'" in only(problems(program.connect("spin", "spin")))

    def test_a_decision_without_a_label(self) -> None:
        program = asking().add(speak("x")).connect("x", "end").connect("clear", "x")
        assert "'clear' -> 'x' has no label" in only(problems(program))

    @pytest.mark.parametrize("label", ["YES", "yes", "Yes "])
    def test_labels_that_a_model_cannot_tell_apart(self, label: str) -> None:
        program = asking().connect("clear", "ask", label=label)
        assert "labels of 'clear' repeat" in only(problems(program))

    def test_labels_that_differ_only_in_how_words_are_joined(self) -> None:
        program = asking().connect("clear", "ask", label="ASK_USER")
        program.connect("clear", "answer", label="Ask User")
        assert "'ASK_USER' and 'Ask User'" in only(problems(program))

    def test_a_label_where_nothing_is_decided(self) -> None:
        program = GraphProgram("main").add(speak("a")).connect("start", "a")
        program.connect("a", "end", label="DONE")
        assert "has the label 'DONE'; only edges out of a Decision" in only(problems(program))

    def test_several_ways_out_of_an_action_and_of_start(self) -> None:
        program = asking().connect("answer", "ask").connect("start", "ask")
        found = problems(program)
        assert "2 edges leave the Control 'start' ('clear', 'ask'); keep one" in found
        assert "2 edges leave the Action 'answer' ('end', 'ask'); keep one" in found
        assert len(found) == 2

    def test_a_decision_with_a_single_choice(self) -> None:
        program = GraphProgram("main").add(Decision("d", "Why", "Is it?"))
        program.connect("start", "d").connect("d", "end", label="YES")
        assert "'d' has a single choice" in only(problems(program))

    def test_an_edge_to_and_from_an_unknown_node(self) -> None:
        assert "unknown node, 'nobody'" in only(
            problems(asking().connect("clear", "nobody", label="MAYBE"))
        )
        assert "unknown node, 'ghost'" in only(problems(asking().connect("ghost", "ask")))

    def test_edges_out_of_end_and_into_start(self) -> None:
        assert "leaves 'end'" in only(problems(asking().connect("end", "ask")))
        program = asking().connect("clear", "start", label="AGAIN")
        assert "enters 'start'" in only(problems(program))

    @pytest.mark.parametrize(
        ("node_id", "said"),
        [("", "is empty"), (" a", "blank"), ("a\n", "blank"), ("a\x00b", "cannot be seen")],
    )
    def test_odd_ids(self, node_id: str, said: str) -> None:
        found = only(problems(chain(speak(node_id))))
        assert f"the id of the Action {node_id!r}" in found
        assert said in found

    def test_names_of_tools_and_programs_that_are_empty(self) -> None:
        found = problems(chain(Action("a", "", "Why"), Program("p", "Why", "")))
        assert found == ["the tool of 'a' is empty", "the program called by 'p' is empty"]

    def test_a_third_control(self) -> None:
        program = asking()
        program.nodes["middle"] = Control("middle")
        found = problems(program.connect("middle", "ask"))
        assert "the Control 'middle' is neither 'start' nor 'end'" in found

    def test_everything_is_said_at_once(self) -> None:
        program = asking().add(speak("alone", "{% if %}")).connect("end", "nobody")
        program.connect("clear", "answer", label="YES").connect("answer", "ask", label="THEN")
        assert len(problems(program)) == 8


class TestPrompts:
    def test_a_prompt_with_a_syntax_error(self) -> None:
        found = only(problems(chain(speak("a", "first line\n{{ query"))))
        assert "the prompt of 'a', line 2" in found

    def test_a_question_with_a_syntax_error(self) -> None:
        program = asking()
        program.nodes["clear"] = Decision("clear", "Check", "{% for x in %}")
        assert "the question of 'clear', line 1" in only(problems(program))

    def test_a_prompt_is_never_rendered(self) -> None:
        assert chain(speak("a", "{{ query|round }}{{ query.id.name }}")).build()

    def test_a_prompt_nested_beyond_reading(self) -> None:
        deep = "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}"
        assert "nested too deeply" in only(problems(chain(speak("a", deep))))

    def test_a_variable_that_var_in_does_not_list(self) -> None:
        found = only(problems(chain(speak("a", "Tell {{ facts }}"))))
        assert "uses 'facts', which its var_in does not list" in found

    def test_what_a_prompt_sets_itself_needs_no_listing(self) -> None:
        prompt = "{% for c in query %}{{ loop.index }} {{ c }}{% endfor %}"
        assert chain(speak("a", prompt)).build()

    def test_functions_of_jinja_are_no_variables(self) -> None:
        assert "uses 'range', which" in only(problems(chain(speak("a", "{{ range }}"))))


class TestVariables:
    def test_a_variable_that_an_action_before_sets(self) -> None:
        first = speak("first", var_out="facts")
        assert chain(first, speak("second", "{{ facts }}", var_in=["facts"])).build()

    def test_a_variable_set_only_later(self) -> None:
        later = speak("later", var_out="facts")
        found = only(problems(chain(speak("a", "{{ facts }}", var_in=["facts"]), later)))
        assert "'a' reads the variable 'facts', which nothing before it sets" in found

    def test_a_loop_may_set_what_its_beginning_reads(self) -> None:
        program = asking()
        program.nodes["clear"] = Decision("clear", "Check", "{{ said }}?", var_in=["said"])
        program.nodes["ask"] = Action("ask", "AskUser", "Ask", "Ask", var_out="said")
        assert program.build()

    def test_what_every_run_knows_and_what_the_caller_sets(self) -> None:
        node = speak("a", "{{ query }} {{ objective }} {{ tone }}", var_in=["query", "tone"])
        program = chain(node)
        assert "'tone'" in only(problems(program))
        program.var_in.append("tone")
        assert program.build()

    def test_a_caller_must_set_what_the_called_program_needs(self) -> None:
        called = chain(speak("a", "{{ topic }}", var_in=["topic"]), name="tell")
        called.var_in.append("topic")
        caller = chain(Program("call", "Tell", "tell"))
        assert "'call' calls 'tell' with the variable 'topic'" in only(problems(caller, [called]))
        chain(speak("pick", var_out="topic"), Program("call", "Tell", "tell")).build([called])

    def test_a_called_program_may_set_a_variable(self) -> None:
        inner = chain(speak("a", var_out="facts"), name="inner")
        middle = chain(Program("p", "Look", "inner"), name="middle")
        reader = speak("tell", "{{ facts }}", var_in=["facts"])
        caller = chain(Program("call", "Look", "middle"), reader)
        assert caller.build([inner, middle])
        assert caller.build()  # what an unknown program sets cannot be known
        other = chain(speak("a"), name="middle")
        assert "'facts'" in only(problems(caller, [other]))

    def test_what_is_called_by_a_tool_may_set_anything(self) -> None:
        call = Action("call", "CallGraphProgram", "Call what fits", "Which?")
        assert chain(call, speak("tell", "{{ facts }}", var_in=["facts"])).build()

    def test_thousands_of_nodes_are_checked_in_no_time(self) -> None:
        nodes = [speak(f"n{n}", "{{ x }}", var_in=["x"], var_out="x") for n in range(2_000)]
        program = chain(speak("first", var_out="x"), *nodes)
        start = time.process_time()
        program.build()
        assert time.process_time() - start < 10

    @pytest.mark.parametrize("name", ["", "two words", "1st"])
    def test_a_name_that_no_variable_can_have(self, name: str) -> None:
        assert "cannot be the name" in only(problems(chain(speak("a", var_out=name))))
        with pytest.raises(ProgramError, match="cannot be the name"):
            GraphProgram("main", var_in=[name])


def calling(name: str, called: str, *, can_avoid: bool) -> GraphProgram:
    """Return a program that calls another, perhaps only on one of two ways."""
    program = chain(Program("call", "Go on", called), name=name)
    if can_avoid:
        program.edges.remove(Edge("start", "call"))
        program.add(Decision("more", "Check", "Is there more?")).connect("start", "more")
        program.connect("more", "call", label="YES").connect("more", "end", label="NO")
    return program


class TestProgramsTogether:
    def test_an_unknown_program(self) -> None:
        program = chain(Program("call", "Go", "nobody"))
        assert program.build()
        found = only(problems(program, [asking()]))
        assert found == "'call' calls the unknown program 'nobody'; known are main"

    def test_programs_by_name_or_as_a_list(self) -> None:
        helper = chain(speak("a"), name="helper")
        program = chain(Program("call", "Go", "helper"))
        assert program.build([helper])
        assert program.build({"helper": helper})
        check_programs([program, helper])
        check_programs({"main": program, "helper": helper})

    def test_recursion_with_and_without_an_exit(self) -> None:
        assert calling("main", "main", can_avoid=True).build([])
        found = only(problems(calling("main", "main", can_avoid=False), []))
        assert "recursion without an exit" in found

    def test_mutual_recursion(self) -> None:
        one = calling("one", "two", can_avoid=False)
        with pytest.raises(InvalidProgramError) as caught:
            check_programs([one, calling("two", "one", can_avoid=False)])
        assert [line.split(":")[0] for line in caught.value.problems] == ["one", "two"]
        check_programs([one, calling("two", "one", can_avoid=True)])

    def test_who_calls_an_endless_program_is_named_too(self) -> None:
        loop = calling("loop", "loop", can_avoid=False)
        stuck, free = (
            calling("stuck", "loop", can_avoid=False),
            calling("f", "loop", can_avoid=True),
        )
        with pytest.raises(InvalidProgramError) as caught:
            check_programs([loop, stuck, free])
        assert [line.split(":")[0] for line in caught.value.problems] == ["loop", "stuck"]

    def test_two_programs_of_one_name(self) -> None:
        with pytest.raises(InvalidProgramError, match="main: 2 programs have this name"):
            check_programs([asking(), asking()])

    @given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=6, max_size=6))
    def test_recursion_is_found_exactly_when_running_would_never_end(
        self, calls: list[tuple[int, bool]]
    ) -> None:
        """Each program calls one other, avoidably or not: follow the unavoidable calls."""
        programs = [
            calling(f"p{number}", f"p{called}", can_avoid=can_avoid)
            for number, (called, can_avoid) in enumerate(calls)
        ]

        def ends(number: int) -> bool:
            for _ in calls:
                called, can_avoid = calls[number]
                if can_avoid:
                    return True
                number = called
            return False

        endless = {f"p{number}" for number in range(len(calls)) if not ends(number)}
        named = set[str]()
        try:
            check_programs(programs)
        except InvalidProgramError as error:
            named = {line.split(":")[0] for line in error.problems}
        assert named == endless


class TestNamesThatAreTaken:
    @pytest.mark.parametrize("name", ["query", "objective"])
    def test_no_result_is_kept_where_every_run_keeps_its_own(self, name: str) -> None:
        program = GraphProgram("main").add(Action("a", "Predict", "A", "Go", var_out=name))
        program.connect("start", "a").connect("a", "end")
        with pytest.raises(InvalidProgramError, match="UpdateObjective"):
            program.build()

    def test_no_caller_could_set_a_variable_named_session(self) -> None:
        program = GraphProgram("main", var_in=["session"]).add(Action("a", "Predict", "A", "Go"))
        program.connect("start", "a").connect("a", "end")
        with pytest.raises(InvalidProgramError, match="'session'"):
            program.build()
