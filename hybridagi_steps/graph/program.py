"""GraphProgram: what an agent should do, drawn as a graph of nodes and labelled edges.

A program is data. It starts at `start`, ends at `end`; an Action uses a tool, a Decision asks a
question whose options are the labels of its edges, a Program node calls another program. Building
checks the whole graph before anything runs. How it is checked, written as text, kept in files and
drawn stands in modules of their own; this one holds the graph and puts their doors in one place.
It knows nothing of language models or of who runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote
from uuid import uuid4

from hybridagi_steps.display.graph import graph_svg
from hybridagi_steps.display.mermaid import graph_mermaid
from hybridagi_steps.errors import (
    InvalidProgramError,
    ProgramError,
    ProgramTextError,
    UnknownProgramError,
)
from hybridagi_steps.graph.checks import listed, problems
from hybridagi_steps.graph.nodes import (
    END,
    START,
    Action,
    Control,
    Decision,
    Edge,
    Node,
    Program,
    ProgramGraph,
    program_text,
    with_texts,
)


class GraphProgram:
    """A program as a graph.

    Two programs are equal when their names, descriptions, variables, nodes and edges are.

    Args:
        name: What others call it by.
        description: What it is for.
        var_in: Variables that its caller sets before calling it.

    Raises:
        ProgramError: Name or description is no text, or a variable's name is none.

    Example:
        >>> program = GraphProgram(name="main", description="Answer, or ask back")
        >>> _ = program.add(Decision("clear", "Check the question", "Is the question clear?"))
        >>> _ = program.add(Action("answer", "Speak", "Answer", "Answer the question"))
        >>> _ = program.add(Action("ask", "AskUser", "Clarify", "Ask what is unclear"))
        >>> _ = program.connect("start", "clear").connect("clear", "answer", label="YES")
        >>> _ = program.connect("clear", "ask", label="NO").connect("ask", "clear")
        >>> _ = program.connect("answer", "end").build()
        >>> sorted(program.choices("clear"))
        ['NO', 'YES']
    """

    def __init__(self, name: str, description: str = "", var_in: Iterable[str] = ()) -> None:
        """Begin a program with nothing but `start` and `end`."""
        _check_text("the name of a program", name)
        _check_text(f"the description of {name!r}", description)
        if isinstance(var_in, str):
            raise ProgramError(f"var_in of {name!r} is a list, such as [{var_in!r}], not a text.")
        self.name, self.description, self.var_in = name, description, list(var_in)
        for variable in self.var_in:
            _check_text("the name of a variable", variable)
            if not variable.isidentifier():
                raise ProgramError(f"{variable!r} cannot be the name of a variable.")
        self.nodes: dict[str, Node] = {START: Control(START), END: Control(END)}
        self.edges: list[Edge] = []

    def add(self, node: Node) -> Self:
        """Add a node.

        Raises:
            ProgramError: Its id is taken, or it is no node.
        """
        if not isinstance(node, Node):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise ProgramError(
                f"a node of {self.name!r} is an Action, a Decision or a Program, not "
                f"{type(node).__name__}."
            )
        if node.id in self.nodes:
            raise ProgramError(f"the program {self.name!r} has a node {node.id!r} already.")
        self.nodes[node.id] = node
        return self

    def connect(self, source: str, target: str, label: str | None = None) -> Self:
        """Add an edge; `build` checks it.

        Raises:
            ProgramError: A name or label is no text.
        """
        _check_text("where an edge begins, the id of a node,", source)
        _check_text("where an edge ends, the id of a node,", target)
        if label is not None:
            _check_text(f"the label of the edge {source!r} -> {target!r}", label)
        self.edges.append(Edge(source, target, label))
        return self

    def build(
        self, programs: Iterable[ProgramGraph] | Mapping[str, ProgramGraph] | None = None
    ) -> Self:
        """Check the whole program.

        Args:
            programs: The programs that this one may call. With them, calls of unknown programs and
                recursion without an exit are found too.

        Returns:
            This program, unchanged.

        Raises:
            InvalidProgramError: Something is wrong; `problems` lists all of it.
        """
        given = None if programs is None else {other.name: other for other in listed(programs)}
        if found := problems(self, given):
            raise InvalidProgramError(self.name, found)
        return self

    def leaving(self, node_id: str) -> Iterator[Edge]:
        """Yield the edges that leave a node, in the order they were added."""
        return (edge for edge in self.edges if edge.source == node_id)

    def next(self, node_id: str) -> str:
        """Return the node that follows one that is no Decision, when all goes well."""
        return next(edge for edge in self.leaving(node_id) if not edge.is_error).target

    def on_error(self, node_id: str) -> str | None:
        """Return the node that follows an Action that fails, None when that ends the run."""
        return next((edge.target for edge in self.leaving(node_id) if edge.is_error), None)

    def choices(self, node_id: str) -> dict[str, str]:
        """Return a Decision's options: label to target, in the order they were added."""
        return {edge.label or "": edge.target for edge in self.leaving(node_id)}

    def calls(self) -> list[str]:
        """Return the names of the programs that this one calls, each once."""
        called = (node.program for node in self.nodes.values() if isinstance(node, Program))
        return list(dict.fromkeys(called))

    @classmethod
    def from_cypher(cls, text: str, name: str = "main") -> Self:
        """Read the text form.

        Args:
            text: What `to_cypher` writes, or what a person wrote in the same form.
            name: The program's name, which the text does not hold.

        Raises:
            ProgramTextError: It cannot be read; the error names line and column.
            ProgramError: It is no text.
        """
        _check_text("the text form of a program", text)
        from hybridagi_steps.graph import parser

        found = parser.read(text, name)
        program = cls(name, found.description, found.var_in)
        program.nodes.update((node.id, node) for node in found.nodes)
        program.edges += found.edges
        return program

    def copy(self) -> GraphProgram:
        """Return a program that later changes to this one do not reach."""
        copied = GraphProgram(self.name, self.description, self.var_in)
        copied.nodes, copied.edges = dict(self.nodes), list(self.edges)
        return copied

    def rewritten(self, rewrite: Callable[[str], str]) -> GraphProgram:
        """Return a copy with all that it says rewritten, but not what its parts are matched by."""
        made = self.copy()
        made.description = rewrite(self.description)
        made.nodes = {name: with_texts(node, rewrite) for name, node in self.nodes.items()}
        return made

    def to_cypher(self) -> str:
        """Return the text form, from which `from_cypher` makes an equal program.

        Raises:
            ProgramError: A text in it has half a character (a lone surrogate).
        """
        return program_text(self)

    def save(self, folder: str | Path) -> Path:
        """Write the text form to `<name>.cypher` in a folder, whole or not at all.

        The folder is made if need be. Characters that a file name cannot hold are written as in a
        web address; `load` reads them back.

        Returns:
            The file.

        Raises:
            ProgramError: The name is too long or empty.
            OSError: It cannot be written.
        """
        return write(Path(folder), self.name, self.to_cypher())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` or a person wrote; its name is the program's.

        Raises:
            UnknownProgramError: There is no such file.
            ProgramError: It is a folder.
            ProgramTextError: It cannot be read; the error names the file, line and column.
        """
        name, text = read(Path(path))
        return cls.from_cypher(text, name)

    @classmethod
    def load_folder(cls, folder: str | Path) -> dict[str, Self]:
        """Read all `*.cypher` files of a folder.

        Returns:
            The programs by name, in the order of their names.

        Raises:
            UnknownProgramError: There is no such folder.
            ProgramTextError: A file cannot be read; the error names it.
        """
        if not Path(folder).is_dir():
            raise UnknownProgramError(str(folder))
        loaded = [cls.load(path) for path in sorted(Path(folder).glob(f"*{SUFFIX}"))]
        return {program.name: program for program in sorted(loaded, key=lambda p: p.name)}

    def show(self) -> None:
        """Draw the program in a notebook; print its text form anywhere else."""
        # Whoever runs in a notebook has loaded IPython; nobody else pays for looking.
        ipython = sys.modules.get("IPython")
        shell: Any = ipython.get_ipython() if ipython is not None else None
        if shell is None or not hasattr(shell, "kernel"):
            print(self)
        else:
            import_module("IPython.display").display(self)

    def to_mermaid(self) -> str:
        """Return the program as a Mermaid flowchart."""
        return graph_mermaid(*nodes_and_edges(self))

    def _repr_html_(self) -> str:
        """Return the drawing: what a notebook shows; it loads nothing and runs no script."""
        title = f"{self.name}: {self.description}" if self.description else self.name
        return graph_svg(*nodes_and_edges(self), title=title)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphProgram):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a program can change

    def __str__(self) -> str:
        return self.to_cypher()

    def __repr__(self) -> str:
        return f"GraphProgram({self.name!r}, {len(self.nodes)} nodes, {len(self.edges)} edges)"


def _check_text(what: str, given: object) -> None:
    if not isinstance(given, str):
        raise ProgramError(f"{what} is a text, not {type(given).__name__}.")


SUFFIX = ".cypher"
LONGEST_NAME = 200
"""Most characters of a file name before its suffix; file systems take 255 bytes in all."""

_RESERVED = {"CON", "PRN", "AUX", "NUL"} | {f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10)}


def file_name(name: str) -> str:
    """Return the name of a program's file.

    Example:
        >>> file_name("../plan"), file_name("ask user")
        ('%2E.%2Fplan.cypher', 'ask user.cypher')
    """
    try:
        stem = quote(name, safe=" ")
    except UnicodeEncodeError:
        raise ProgramError(f"the name {name!r} has half a character (a lone surrogate).") from None
    if stem.startswith((".", " ")) or stem.split(".")[0].upper() in _RESERVED:
        stem = f"%{ord(stem[0]):02X}{stem[1:]}"
    if not stem or len(stem) > LONGEST_NAME:
        raise ProgramError(
            f"a program cannot be saved under the name {name[:60]!r}: as a file name it has "
            f"{len(stem)} characters, and 1 to {LONGEST_NAME} are possible."
        )
    return stem + SUFFIX


def write(folder: Path, name: str, text: str) -> Path:
    """Write a program's text under its name and return the file."""
    path = folder / file_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    # Opened by ourselves, so that the file gets the permissions of any new file.
    temporary = folder / f".{uuid4().hex}.saving"
    try:
        with temporary.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read(path: Path) -> tuple[str, str]:
    """Return the name and the text of a program's file."""
    if path.is_dir():
        raise ProgramError(f"{str(path)!r} is a folder; load_folder reads all programs in one.")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        known = [unquote(file.stem) for file in path.parent.glob(f"*{SUFFIX}")]
        raise UnknownProgramError(str(path), known) from None
    try:
        return unquote(path.stem), data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        raise ProgramTextError(
            "this byte is not UTF-8: save the file as UTF-8",
            line=before.count("\n") + 1,
            column=len(before) - before.rfind("\n"),
            name=path.name,
        ) from None


def nodes_and_edges(program: ProgramGraph) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what `graph_svg` draws of a program."""
    nodes = [_drawn(name, node) for name, node in program.nodes.items()]
    edges: list[dict[str, Any]] = [
        {"source": edge.source, "target": edge.target, "label": edge.label or ""}
        for edge in program.edges
    ]
    return nodes, edges


def _drawn(name: str, node: Node) -> dict[str, Any]:
    kind = type(node).__name__
    drawn = {"id": name, "label": node.id, "kind": kind.lower(), "title": node.id}
    if isinstance(node, Action):
        drawn["detail"] = f"{node.tool} · {node.purpose}"
        drawn["title"] = f"{kind} {node.id}: {node.tool}\n{node.purpose}\n\n{node.prompt}"
    elif isinstance(node, Decision):
        drawn["detail"] = node.question or node.purpose
        drawn["title"] = f"{kind} {node.id}\n{node.purpose}\n\n{node.question}"
    elif isinstance(node, Program):
        drawn["detail"] = f"{node.program} · {node.purpose}"
        drawn["title"] = f"{kind} {node.id}: {node.program}\n{node.purpose}"
    return drawn
