"""Reading the text form of graph programs: a grammar, and errors that say where and what.

Lark finds the structure; this module turns it into nodes and edges. It refuses rather than
guesses: unknown kinds and properties, values of the wrong type, unfinished strings and names
declared twice are errors with a line and a column. Lark takes a while to load, so this module is
loaded when the first text is read.
"""

# Lark types its trees and errors in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, NoReturn, cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from pydantic import ValidationError

from hybridagi_steps.errors import ProgramError, ProgramTextError
from hybridagi_steps.graph.nodes import END, START, Action, Control, Decision, Edge, Node, Program

_GRAMMAR = r"""
start: (DESCRIPTION | VARIABLES)* (CREATE path ("," path)* ","?)+ ";"?
path: node (edge node)*
node: "(" _name [":" KIND ["{" [pair ("," pair)* ","?] "}"]] ")"
pair: (KEY | QUOTED | STRING) ":" (STRING | NUMBER | TRUE | FALSE | NULL | list)
list: "[" [STRING ("," STRING)* ","?] "]"
edge: "-" "[" ":" _name "]" "->" -> labelled
    | "-->" -> plain
_name: WORD | QUOTED

DESCRIPTION.3: /\/\/[ \t]*@desc:[^\n]*/
VARIABLES.3: /\/\/[ \t]*@var_in:[^\n]*/
CREATE.2: "CREATE"i
TRUE.2: "true"i
FALSE.2: "false"i
NULL.2: "null"i
WORD: /[^\W\d]\w*/
KIND: WORD
KEY: WORD
QUOTED: /`(?:[^`]|``)*`/
STRING: /"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'/s
NUMBER: /[-+]?\d[\w.+-]*/
COMMENT: /\/\/[^\n]*/ | /\/\*(?:.|\n)*?\*\//
%ignore COMMENT
%ignore /[\s\ufeff]+/
"""

_WORDS = {
    "$END": "the end of the text",
    "COLON": "':'",
    "COMMA": "','",
    "CREATE": "CREATE",
    "DESCRIPTION": "// @desc:",
    "FALSE": "true or false",
    "KEY": "the name of a property",
    "KIND": "Control, Action, Decision or Program",
    "LBRACE": "'{'",
    "LPAR": "'('",
    "LSQB": "'['",
    "MINUS": "an edge, -[:LABEL]->",
    "NULL": "null",
    "NUMBER": "",
    "QUOTED": "a name, in back quotes if it is no plain word",
    "RBRACE": "'}'",
    "RPAR": "')'",
    "RSQB": "']'",
    "SEMICOLON": "",
    "STRING": "a text in quotes",
    "TRUE": "true or false",
    "VARIABLES": "// @var_in:",
    "WORD": "a name, in back quotes if it is no plain word",
    "__ANON_0": "'->'",
    "__ANON_1": "an edge, -[:LABEL]->",
}
"""What the grammar's terminals are called in an error; the empty ones are not worth naming."""

_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/"} | {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"
}  # fmt: skip
_NOT_ITSELF = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|\r\n", re.DOTALL)
"""What stands for something else inside of quotes: escapes, and line ends of some editors."""
_KINDS: dict[str, type[Node]] = {
    kind.__name__: kind for kind in (Control, Action, Decision, Program)
}
_TYPES = {
    "string_type": "a text in quotes",
    "list_type": "a list of texts",
    "bool_type": "true or false",
}
"""Pydantic's error types, as what was wanted."""


@dataclass(slots=True)
class ReadText:
    """What a text says."""

    description: str = ""
    var_in: list[str] = field(default_factory=list[str])
    nodes: list[Node] = field(default_factory=list[Node])
    edges: list[Edge] = field(default_factory=list[Edge])


def read(text: str, name: str | None = None) -> ReadText:
    """Read the text form of a program; `name` is what errors call it."""
    try:
        text.encode()
        return _Reader(_parser().parse(text)).read()
    except (UnicodeEncodeError, UnexpectedInput, _RefusedError) as error:
        line, column = _place(error, text)
        raise ProgramTextError(_explain(error, text), line=line, column=column, name=name) from None


class _RefusedError(Exception):
    """Something in the text, at its place; gets the program's name on the way out."""

    def __init__(self, message: str, token: Token, skip: int = 0) -> None:
        super().__init__(message)
        # A token may span lines; what lies `skip` characters in is placed from its own start.
        before = str(token)[:skip]
        self.line = (token.line or 1) + before.count("\n")
        newline = before.rfind("\n")
        self.column = skip - newline if newline >= 0 else (token.column or 1) + skip


class _Reader:
    """Turns one parsed text into nodes and edges."""

    def __init__(self, tree: Tree[Token]) -> None:
        self._tree, self._found = tree, ReadText()
        self._ids: dict[str, str] = {}
        self._taken = set[str]()
        self._places: dict[str, Token] = {}

    def read(self) -> ReadText:
        parts = self._tree.children
        heads = [part for part in parts if isinstance(part, Token)]
        paths = [part for part in parts if isinstance(part, Tree)]
        self._read_heads(heads)
        for path in paths:
            for declared in path.children[::2]:
                self._declare(cast("Tree[Token]", declared))
        for path in paths:
            self._found.edges += self._edges(path)
        return self._found

    def _read_heads(self, heads: Iterable[Token]) -> None:
        lines = [token for token in heads if token.type == "DESCRIPTION"]
        texts = [line.partition("@desc:")[2].strip() for line in lines]
        self._found.description = "\n".join(texts)
        if len(texts) == 1 and texts[0].startswith('"'):
            self._found.description = _description(texts[0], lines[0])
        for token in heads:
            if token.type == "VARIABLES":
                listed = token.partition("@var_in:")[2]
                self._found.var_in += [_variable(part, token) for part in listed.split(",")]

    def _declare(self, tree: Tree[Token]) -> None:
        name, kind, *pairs = cast("list[Any]", tree.children)
        variable = _plain(name)
        if kind is None:
            return
        if variable in self._ids:
            first = self._places[variable].line
            raise _RefusedError(f"the node {variable!r} was declared in line {first} already", name)
        node = _node(variable, kind, [pair for pair in pairs if pair is not None])
        if node.id in self._taken:
            raise _RefusedError(f"another node has the id {node.id!r} already", name)
        self._taken.add(node.id)
        self._ids[variable], self._places[variable] = node.id, name
        self._found.nodes.append(node)

    def _edges(self, path: Tree[Token]) -> Iterator[Edge]:
        names = [self._id(cast("Tree[Token]", node)) for node in path.children[::2]]
        for index, edge in enumerate(cast("list[Tree[Token]]", path.children[1::2])):
            yield Edge(names[index], names[index + 1], _label(edge))

    def _id(self, node: Tree[Token]) -> str:
        variable = _plain(cast("Token", node.children[0]))
        return self._ids.get(variable, variable)


def _label(edge: Tree[Token]) -> str | None:
    """Return an edge's label; the bare word NEXT, and `-->`, say that it has none."""
    if edge.data == "plain":
        return None
    token = cast("Token", edge.children[0])
    return None if (token.type, str(token)) == ("WORD", "NEXT") else _plain(token)


def _node(variable: str, kind: Token, pairs: list[Tree[Token]]) -> Node:
    if kind not in _KINDS:
        raise _RefusedError(f"expected {_WORDS['KIND']}, found {str(kind)!r}", kind)
    made, values, keys = _KINDS[kind], dict[str, Any](), dict[str, Token]()
    known = [part.name for part in fields(made)]
    needed = [part.name for part in fields(made) if part.default is MISSING]
    for pair in pairs:
        place, value = cast("tuple[Token, Any]", pair.children)
        key = _text(place) if place.type == "STRING" else _plain(place)
        if key in keys:
            raise _RefusedError(f"{key!r} stands twice in {variable!r}", place)
        if key not in known:
            raise _RefusedError(
                f"{key!r} is no property of {kind}; it has {', '.join(known)}", place
            )
        keys[key] = place
        meant = _value(value)
        if meant is not None or key in needed:
            values[key] = meant
    values.setdefault("id", variable)
    if made is Control and values["id"] not in (START, END):
        raise _RefusedError("a Control is 'start' or 'end'", keys.get("id", kind))
    try:
        return made(**values)
    except ProgramError as error:
        _refuse(cast("ValidationError", error.__cause__), kind, keys)


def _refuse(error: ValidationError, kind: Token, keys: dict[str, Token]) -> NoReturn:
    """Raise the first of pydantic's findings in plain words, at its place."""
    first = error.errors()[0]
    place = str(first["loc"][0])
    if place not in keys:
        raise _RefusedError(f"this {kind} needs the property {place!r}", kind) from None
    wanted = _TYPES.get(first["type"], first["msg"])
    raise _RefusedError(f"{place!r} must be {wanted}", keys[place]) from None


def _value(part: object) -> Any:
    if isinstance(part, Tree):
        items = cast("list[Token | None]", part.children)
        return [_text(item) for item in items if item is not None]
    token = cast("Token", part)
    # No property is a number: it is read as one, so that the error can name the property.
    constants = {"TRUE": True, "FALSE": False, "NULL": None, "NUMBER": 0}
    return _text(token) if token.type == "STRING" else constants[token.type]


def _text(token: Token) -> str:
    """Return the text that a quoted string stands for.

    Escapes are those of JSON, and that of the single quote. Line ends inside the quotes count as
    one newline, whatever the editor writes; what the text form itself writes has them escaped.
    """

    def meant(found: re.Match[str]) -> str:
        digits, letter = found.groups()
        if digits or letter is None:
            return chr(int(digits, 16)) if digits else "\n"
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        shown = "\\u needs four hexadecimal digits"
        shown = shown if letter == "u" else f"there is no escape \\{letter}"
        raise _RefusedError(f"{shown}; write \\\\ for a backslash", token, found.start() + 1)

    text = _NOT_ITSELF.sub(meant, token[1:-1])
    if any("\ud800" <= character <= "\udfff" for character in text):
        # Two escaped halves make one character; a half alone is none.
        try:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise _RefusedError("half a character (a lone surrogate) in this text", token) from None
    return text


def _plain(token: Token) -> str:
    """Return a name without its back quotes."""
    return str(token)[1:-1].replace("``", "`") if token.type == "QUOTED" else str(token)


def _description(text: str, token: Token) -> str:
    """Return a description that was written as a JSON string, or as it stands if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, str):
        return text
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _RefusedError(
            "half a character (a lone surrogate) in the description", token
        ) from None
    return value


def _variable(text: str, token: Token) -> str:
    name = text.strip()
    if not name.isidentifier():
        raise _RefusedError(f"{name!r} cannot be the name of a variable", token)
    return name


def _place(
    error: UnicodeEncodeError | UnexpectedInput | _RefusedError, text: str
) -> tuple[int, int]:
    """Return line and column; an error at the end of the text stands behind its last character."""
    if isinstance(error, UnicodeEncodeError):
        place = error.start
    elif isinstance(error, UnexpectedToken) and error.token.type == "$END":
        place = len(text)
    else:
        return error.line, error.column
    return text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)


def _explain(error: UnicodeEncodeError | UnexpectedInput | _RefusedError, text: str) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half a character (a lone surrogate)"
    if isinstance(error, UnexpectedCharacters):
        found = text[error.pos_in_stream or 0]
        if found in "\"'`":
            return f"this {found} is never closed"
        if text.startswith("/*", error.pos_in_stream or 0):
            return "this comment is never closed"
        return f"expected {_expected(error.allowed)}, found {found!r}"
    if isinstance(error, UnexpectedToken):
        token = error.token
        found = "the end of the text" if token.type == "$END" else repr(_short(str(token)))
        return f"expected {_expected(error.accepts or error.expected)}, found {found}"
    return str(error)


def _expected(terminals: Iterable[str]) -> str:
    words = sorted({_WORDS.get(terminal, terminal) for terminal in terminals} - {""})
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:29]}…"


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="contextual", maybe_placeholders=True)
