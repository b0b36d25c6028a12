"""The text form: whatever a program holds comes back, and errors say line, column and why."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybridagi_steps.errors import (
    InvalidProgramError,
    ProgramError,
    ProgramTextError,
    UnknownProgramError,
)
from hybridagi_steps.graph.nodes import Edge
from hybridagi_steps.programs import Action, Control, Decision, GraphProgram, Program

HOSTILE = [
    'He said "hi"',
    "it's",
    "back\\slash \\n \\u0041 \\",
    "http://example.org // not a comment /* nor this */",
    "}), (x:Action {",
    "one\ntwo\r\nthree\ttab\rfour",
    "žluťoučký 😀 日本語 \u202e\u2028\u2029\u0085\ufeff",
    "\x00\x01\x1b\x7f",
    "`back` ``quotes```",
    "{{ query }}{% raw %}",
    "",
    " ",
    "NEXT",
    "CREATE",
    "true",
]


def everything(text: str) -> GraphProgram:
    """Return a program, sound or not, that holds a text wherever a program can."""
    program = GraphProgram("main", text)
    program.add(Action("a" + text, text, text, text, [text, text], text, disable_inference=True))
    program.add(Decision("d" + text, text, text, [text])).add(Program("p" + text, text, text))
    program.connect("start", "a" + text).connect(text, "d" + text)
    return program.connect("d" + text, "end", label=text).connect("d" + text, "end", label=text)


def place_of_error(source: str) -> tuple[int, int] | None:
    """Return where a text is refused, None when it is read."""
    try:
        GraphProgram.from_cypher(source)
    except ProgramTextError as error:
        return error.line, error.column
    return None


texts = st.text() | st.sampled_from(HOSTILE) | st.lists(st.sampled_from(HOSTILE)).map("".join)
variables = st.sampled_from(["query", "x", "été", "_1"])


@st.composite
def programs(draw: st.DrawFn) -> GraphProgram:
    program = GraphProgram("main", draw(texts), draw(st.lists(variables, max_size=2)))
    ids = draw(st.lists(texts, unique=True, max_size=4).map(lambda i: [*i, "start", "end"]))
    some = st.lists(texts, max_size=2)
    for node_id in ids[:-2]:
        if node_id in program.nodes:
            continue
        action = st.builds(
            Action,
            st.just(node_id),
            texts,
            texts,
            prompt=texts,
            var_in=some,
            var_out=st.none() | texts,
            disable_inference=st.booleans(),
        )
        decision = st.builds(Decision, st.just(node_id), texts, texts, some)
        called = st.builds(Program, st.just(node_id), texts, texts)
        program.add(draw(action | decision | called))
    ends = st.sampled_from(ids) | texts
    program.edges += draw(st.lists(st.builds(Edge, ends, ends, st.none() | texts), max_size=5))
    return program


class TestRoundTrip:
    @given(programs())
    def test_any_program_comes_back_equal(self, program: GraphProgram) -> None:
        assert GraphProgram.from_cypher(program.to_cypher()) == program

    @given(texts)
    @example("\\")
    @example("a\\\nb")
    def test_any_text_comes_back_from_any_place(self, text: str) -> None:
        program = everything(text)
        assert GraphProgram.from_cypher(program.to_cypher(), "main") == program

    @pytest.mark.parametrize("text", HOSTILE)
    def test_known_troublemakers(self, text: str) -> None:
        program = everything(text)
        assert GraphProgram.from_cypher(program.to_cypher()) == program

    def test_half_a_character_is_refused(self) -> None:
        program = GraphProgram("main").connect("start", "half \ud800")
        with pytest.raises(ProgramError, match=r"near .*half .*half a character"):
            program.to_cypher()

    @given(st.text(alphabet=st.characters()))
    def test_any_other_text_is_read_or_refused_with_a_place(self, text: str) -> None:
        for source in (text, f"CREATE {text}", f"CREATE (a:Action {{id: {text}"):
            lines = source.split("\n")
            line, column = place_of_error(source) or (1, 1)
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1

    def test_the_text_is_what_a_person_would_write(self) -> None:
        program = GraphProgram("main", "Answer\nor ask")
        program.add(Decision("clear", "Check", "Is it clear?"))
        program.add(Action("answer", "Speak", "Answer", "Say", disable_inference=True))
        program.connect("start", "clear").connect("clear", "answer", label="YES")
        program.connect("clear", "end", label="NOT YET").connect("answer", "end")
        assert program.to_cypher() == str(program) == PLAIN

    def test_many_threads_may_read_at_once(self) -> None:
        texts = [everything(text).to_cypher() for text in HOSTILE] * 4
        with ThreadPoolExecutor(8) as pool:
            programs = list(pool.map(GraphProgram.from_cypher, texts))
        assert [program.to_cypher() for program in programs] == texts

    def test_a_program_is_pickled_and_copied(self) -> None:
        program = everything(HOSTILE[0])
        assert pickle.loads(pickle.dumps(program)) == program
        twin = copy.deepcopy(program)
        assert twin.add(Program("new", "p", "q")) != program

    def test_a_prompt_of_a_megabyte(self) -> None:
        program = everything('\\"x' * 300_000)
        assert GraphProgram.from_cypher(program.to_cypher()) == program


PLAIN = """\
// @desc: Answer
// @desc: or ask
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(clear:Decision {
  id: "clear",
  purpose: "Check",
  question: "Is it clear?"
}),
(answer:Action {
  id: "answer",
  tool: "Speak",
  purpose: "Answer",
  prompt: "Say",
  disable_inference: true
}),
(start)-[:NEXT]->(clear),
(clear)-[:YES]->(answer),
(clear)-[:`NOT YET`]->(end),
(answer)-[:NEXT]->(end)
"""


def read(*items: str) -> GraphProgram:
    return GraphProgram.from_cypher("CREATE\n" + ",\n".join(items))


class TestReading:
    def test_comments_and_freely_set_text(self) -> None:
        program = GraphProgram.from_cypher(
            "\ufeff// a file\r\n//@desc:  Short \r\n/* more\r\n*/ create (a:Action{tool:'Speak',"
            "purpose:'It\\'s \"so\"', prompt: 'one\r\ntwo'}) // here\r\n,(start)-->(a)-[:NEXT]->"
            "(end);"
        )
        assert program.description == "Short"
        assert program.nodes["a"] == Action("a", "Speak", 'It\'s "so"', "one\ntwo")
        assert program.edges == [Edge("start", "a"), Edge("a", "end")]
        program.build()

    def test_an_id_that_differs_from_the_name_in_the_text(self) -> None:
        program = read('(x:Program {id: "call it", purpose: "p", program: "q"})', "(start)-->(x)")
        assert program.nodes["call it"] == Program("call it", "p", "q")
        assert program.next("start") == "call it"

    def test_false_is_false(self) -> None:
        program = read('(a:Action {tool: "T", purpose: "p", disable_inference: false})')
        node = program.nodes["a"]
        assert isinstance(node, Action)
        assert node.disable_inference is False

    def test_null_stands_for_a_variable_that_is_not_there(self) -> None:
        node = read("(a:Action {tool: 'T', purpose: 'p', var_out: null, var_in: []})").nodes["a"]
        assert node == Action("a", "T", "p")

    def test_null_stands_for_whatever_may_be_left_out(self) -> None:
        text = "(a:Action {tool: 'T', purpose: 'p', prompt: null, var_in: null})"
        assert read(text).nodes["a"] == Action("a", "T", "p")

    def test_keys_in_quotes_and_a_comma_behind_the_last(self) -> None:
        text = """(a:Action {"tool": 'T', 'purpose': 'p', `var_in`: ['x', 'y',],})"""
        assert read(text).nodes["a"] == Action("a", "T", "p", var_in=["x", "y"])
        assert read(text, "(start)-->(a)-->(end),") == read(text, "(start)-->(a)-->(end)")

    def test_escapes_are_those_of_json(self) -> None:
        node = read(r'(a:Action {tool: "\u0041\ud83d\ude00", purpose: "\/\b\f\n\r\t\\\""})')
        assert node.nodes["a"] == Action("a", "A😀", '/\b\f\n\r\t\\"')

    def test_variables_of_the_program(self) -> None:
        program = GraphProgram("main", var_in=["topic", "tone"])
        assert "// @var_in: topic, tone\n" in program.to_cypher()
        assert GraphProgram.from_cypher(program.to_cypher()) == program

    def test_a_node_that_is_nowhere_is_left_to_build(self) -> None:
        program = read("(a:Action {tool: 'T', purpose: 'p'})", "(start)-->(a)-->(nobody)")
        with pytest.raises(InvalidProgramError, match="unknown node, 'nobody'"):
            program.build()


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "line", "column", "said"),
        [
            ("", 1, 1, "expected"),
            ("// only a comment\n", 2, 1, "found the end of the text"),
            ("MATCH (a)", 1, 1, "CREATE"),
            ("CREATE\n(a:Action", 2, 10, "found the end of the text"),
            ("CREATE\n(a:Robot {})", 2, 4, "Control, Action, Decision or Program, found 'Robot'"),
            ("CREATE (a:Action {tool 'x'})", 1, 24, "expected ':'"),
            (
                "CREATE (a:Action {tol: 'x'})",
                1,
                19,
                "'tol' is no property of Action; it has id",
            ),
            ("CREATE (a:Action {tool: 'x'})", 1, 11, "needs the property 'purpose'"),
            ("CREATE (a:Action {tool: 'x', tool: 'y'})", 1, 30, "'tool' stands twice"),
            ("CREATE (a:Action {tool: 'x', 'tool': 'y'})", 1, 30, "'tool' stands twice"),
            ("CREATE (a:Action {,})", 1, 19, "expected '}'"),
            ("CREATE (a:Action {tool: 'x',, purpose: 'p'})", 1, 29, "expected '}'"),
            ("CREATE (a:Action {tool: 5, purpose: 'p'})", 1, 19, "'tool' must be a text"),
            ("CREATE (a:Action {tool: 'x', purpose: null})", 1, 30, "'purpose' must be a text"),
            (
                "CREATE (a:Action {tool: 'x', purpose: 'p', disable_inference: 'false'})",
                1,
                44,
                "'disable_inference' must be true or false",
            ),
            (
                "CREATE (a:Action {tool: 'x', purpose: 'p', var_in: 'q'})",
                1,
                44,
                "'var_in' must be a list",
            ),
            ('CREATE\n(a:Action {\n  tool: "x\n})', 3, 9, 'this " is never closed'),
            ("CREATE (a)-[:`x]->(b)", 1, 14, "this ` is never closed"),
            ("CREATE /* (a)", 1, 8, "comment is never closed"),
            ("CREATE (a:Action {tool: 'a\nb\\q'})", 2, 2, "there is no escape \\q"),
            ("CREATE (a:Action {tool: 'ab\\u12'})", 1, 28, "four hexadecimal digits"),
            ("CREATE (a:Action {tool: '\\ud800'})", 1, 25, "half a character"),
            ("CREATE (x:Control {id: 'middle'})", 1, 20, "a Control is 'start' or 'end'"),
            ("CREATE (x:Control)", 1, 11, "a Control is 'start' or 'end'"),
            ("CREATE (a)-[:X]-(b)", 1, 16, "expected '->'"),
            ("CREATE (a)<-[:X]-(b)", 1, 11, "found '<'"),
            ("CREATE (a),,(b)", 1, 12, "expected '('"),
            ("// @var_in: two words\nCREATE (a)", 1, 1, "cannot be the name of a variable"),
            ("CREATE (a)\n\ud800", 2, 1, "half a character"),
        ],
    )
    def test_they_say_where_and_what(self, text: str, line: int, column: int, said: str) -> None:
        with pytest.raises(ProgramTextError) as caught:
            GraphProgram.from_cypher(text, "main")
        error = caught.value
        assert (error.line, error.column, error.name) == (line, column, "main"), str(error)
        assert said in str(error)

    def test_a_node_declared_twice_names_the_first_place(self) -> None:
        node = "(a:Program {purpose: 'p', program: 'q'})"
        with pytest.raises(ProgramTextError, match=r"line 3.*declared in line 2 already"):
            read(node, node)
        with pytest.raises(ProgramTextError, match="another node has the id 'a' already"):
            read(node, "(b:Program {id: 'a', purpose: 'p', program: 'q'})")

    def test_they_are_written_without_the_names_of_a_grammar(self) -> None:
        for broken in ("(", "CREATE", "CREATE (a", "CREATE (a:Action {x: [", "CREATE (a)-"):
            with pytest.raises(ProgramTextError) as caught:
                GraphProgram.from_cypher(broken)
            said = str(caught.value).replace("CREATE", "")
            assert not any(word.isupper() and len(word) > 3 for word in said.split())
            assert "__" not in said


class TestFiles:
    def test_what_is_saved_is_loaded(self, tmp_path: Path) -> None:
        program = everything(HOSTILE[0])
        path = program.save(tmp_path / "new" / "folder")
        assert path.name == "main.cypher"
        assert GraphProgram.load(path) == program
        assert GraphProgram.load_folder(path.parent) == {"main": program}

    @pytest.mark.parametrize(
        "name",
        ["ask user", "../up", "a/b\\c", ".hidden", "..", "con", "NUL.x", "50%", "ümlaut", "a\x00b"],
    )
    def test_any_name_becomes_a_safe_file_name(self, name: str, tmp_path: Path) -> None:
        program = GraphProgram(name).connect("start", "end")
        path = program.save(tmp_path)
        assert path.parent == tmp_path
        assert path.name.isascii()
        assert not set(path.name) & set('/\\:*?"<>|\x00')
        assert not path.name.startswith(".")
        assert list(GraphProgram.load_folder(tmp_path)) == [name]

    @pytest.mark.parametrize("name", ["", "x" * 300, "\ud800"])
    def test_a_name_that_cannot_be_one_is_refused(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(ProgramError):
            GraphProgram(name).save(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_files_of_other_editors(self, tmp_path: Path) -> None:
        path = tmp_path / "main.cypher"
        path.write_bytes(b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode())
        assert GraphProgram.load(path).to_cypher() == PLAIN

    def test_an_older_file_stays_when_a_newer_cannot_be_written(self, tmp_path: Path) -> None:
        GraphProgram("main", "old").save(tmp_path)
        broken = GraphProgram("main", "new").connect("start", "\ud800")
        with pytest.raises(ProgramError):
            broken.save(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["main.cypher"]
        assert GraphProgram.load(tmp_path / "main.cypher").description == "old"

    def test_a_failing_disk_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        GraphProgram("main", "old").save(tmp_path)

        def fail(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            GraphProgram("main", "new").save(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["main.cypher"]
        assert GraphProgram.load(tmp_path / "main.cypher").description == "old"

    def test_a_saved_file_has_the_permissions_of_any_file(self, tmp_path: Path) -> None:
        (tmp_path / "other").touch()
        saved = GraphProgram("main").save(tmp_path)
        assert saved.stat().st_mode == (tmp_path / "other").stat().st_mode

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        GraphProgram("known").save(tmp_path)
        with pytest.raises(UnknownProgramError, match="known are known"):
            GraphProgram.load(tmp_path / "other.cypher")
        with pytest.raises(UnknownProgramError):
            GraphProgram.load_folder(tmp_path / "nowhere")
        with pytest.raises(ProgramError, match="is a folder; load_folder"):
            GraphProgram.load(tmp_path)

    def test_errors_name_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.cypher"
        path.write_bytes(b"CREATE\n(a\xff)")
        with pytest.raises(ProgramTextError, match=r"bad\.cypher, line 2, column 3: .*UTF-8"):
            GraphProgram.load(path)
        path.write_text("CREATE\n(a", "utf-8")
        with pytest.raises(ProgramTextError, match="bad, line 2, column 3"):
            GraphProgram.load_folder(tmp_path)

    def test_controls_are_never_missing(self) -> None:
        assert list(read("(a)-->(b)").nodes.values()) == [Control("start"), Control("end")]
