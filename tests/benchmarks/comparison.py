"""How we stand beside the peers: the README's short table, all of it, and the margins to reach.

Everything is read from the JSON that the measurements returned; nothing is measured here. A ratio
is the peer's cost in units of ours, so above one we are cheaper. A margin that was not measured, or
not reached, says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.peers import OURS
from tests.benchmarks.postgres_tables import tables as postgres_tables
from tests.benchmarks.recorder import peer_table as recorder_table
from tests.benchmarks.scaling_process import SEARCH
from tests.benchmarks.scaling_tables import server_tables
from tests.benchmarks.scaling_tables import tables as scaling_tables
from tests.benchmarks.search_peers import ADDS, KNOWN, NUMPY
from tests.benchmarks.search_peers import peer_tables as search_tables
from tests.benchmarks.tables import Table, markdown
from tests.benchmarks.write_peers import BATCH, GRAPH
from tests.benchmarks.write_peers import peer_tables as write_tables

Results = Mapping[str, Any]

_STORE, _SAVER = "LangGraph SqliteStore", "LangGraph SqliteSaver"
_SESSION, _LANCE, _CHROMA = "OpenAI Agents SQLiteSession", "LanceDB", "Chroma"
_BY_HAND = "sqlite3 by hand"
_DOCUMENTED = f"{_STORE} as documented"
_BYTES = "bytes_ratio"
_MLFLOW = "MLflow autolog (synchronous)"
_COUNTS = {"10000": "10,000", "100000": "100,000", "1000000": "1,000,000"}
_FILTER_SIZE = "100000"


@dataclass(frozen=True)
class Margin:
    """A ratio that was to be reached."""

    what: str
    at_least: float
    measured: Callable[[Results], float | None]
    recall: Callable[[Results], float | None] | None = None
    recall_at_least: float = 0.0

    def row(self, results: Results) -> list[str]:
        """Return what, target, measured, and whether it was reached."""
        value = self.measured(results)
        target = f"≥ {self.at_least:g}x"
        if self.recall is not None:
            target += f", recall ≥ {self.recall_at_least:g}"
        if value is None:
            return [self.what, target, "not measured", "-"]
        shown, reached = _times(value), value >= self.at_least
        recall = None if self.recall is None else self.recall(results)
        if recall is not None:
            shown += f", recall {recall:.3f}"
            reached = reached and recall >= self.recall_at_least
        return [self.what, target, shown, "yes" if reached else "**no**"]


def _at(*path: str) -> Callable[[Results], float | None]:
    """Return a reader of one number, which is None where a step of the path is missing."""

    def read(results: Results) -> float | None:
        value: Any = results
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]  # pyright: ignore[reportUnknownVariableType]
        return float(value)  # pyright: ignore[reportUnknownArgumentType]

    return read


def _append(durability: str, peer: str) -> Callable[[Results], float | None]:
    return _at("write", "peers", "append", durability, peer, "cpu_ratio")


def _batch(peer: str) -> Callable[[Results], float | None]:
    return _at("write", "peers", "batch", peer, "cpu_ratio")


def _loop(durability: str, size: str, peer: str, key: str) -> Callable[[Results], float | None]:
    return _at("write", "peers", "loops", durability, size, peer, key)


def _loop_margins(size: str, cpu: float, size_on_disk: float) -> list[Margin]:
    what, documented = f"agent loop of {size} steps", f"{_SAVER} as documented"
    beside = (
        ("normal", f"{_SAVER}, same settings", _SAVER),
        ("normal", documented, documented),
        ("full", _SAVER, _SAVER),
    )
    return [
        *(
            Margin(f"{what}, `{name}`, CPU: {words}", cpu, _loop(name, size, peer, "cpu_ratio"))
            for name, words, peer in beside
        ),
        Margin(
            f"{what}, bytes: {_SAVER}", size_on_disk, _loop("full", size, _SAVER, "bytes_ratio")
        ),
    ]


def _index(size: str, peer: str, part: str, key: str) -> Callable[[Results], float | None]:
    return _at("search", "peers", "sizes", size, "peers", peer, part, key)


def _filter_margin(ours: str, part: str = "filtered") -> Callable[[Results], float | None]:
    """Return the time of the fastest peer that found everything, in units of ours."""

    def read(results: Results) -> float | None:
        mine = _index(_FILTER_SIZE, ours, part, "wall_ms")(results)
        peers = _part(results, "search", "peers", "sizes", _FILTER_SIZE, "peers")
        theirs = [
            row[part]["wall_ms"]
            for name, row in peers.items()
            if name not in (OURS, KNOWN, NUMPY) and part in row and row[part]["recall"] == 1.0
        ]
        return min(theirs) / mine if theirs and mine else None

    return read


def _speed(size: str, at_least: float, recall: float) -> Margin:
    return Margin(
        f"index call beside NumPy's exact product, {_COUNTS[size]}, one query, one thread",
        at_least,
        _index(size, OURS, "everything", "times_faster_than_numpy"),
        _index(size, OURS, "everything", "recall"),
        recall,
    )


MARGINS = (
    Margin(f"append, `normal`: {_STORE}, same settings", 2.5, _append("normal", _STORE)),
    Margin(f"append, `normal`: {_DOCUMENTED}", 2.5, _append("normal", _DOCUMENTED)),
    Margin(f"append, `normal`: {_SESSION}, same settings", 8, _append("normal", _SESSION)),
    Margin(
        f"append, `normal`: {_SESSION} as documented",
        8,
        _append("normal", f"{_SESSION} as documented"),
    ),
    Margin(f"append, `normal`: {_LANCE}", 40, _append("normal", _LANCE)),
    Margin(f"append, `normal`: {_CHROMA}", 40, _append("normal", _CHROMA)),
    Margin(f"append, `full`: {_SESSION}", 1.5, _append("full", _SESSION)),
    Margin(f"batch of {BATCH:,}: {_LANCE}", 1, _batch(_LANCE)),
    Margin(f"batch of {BATCH:,}: {_SESSION}", 1, _batch(_SESSION)),
    Margin(f"batch of {BATCH:,}: {_CHROMA}", 15, _batch(_CHROMA)),
    *_loop_margins("100", 20, 15),
    *_loop_margins("400", 35, 60),
    _speed("10000", 2.5, 0.99),
    _speed("100000", 5, 0.99),
    _speed("1000000", 12, 0.98),
    Margin("1 % filter at 100,000: the fastest peer with recall 1", 2, _filter_margin(OURS)),
    Margin("the same, the filter's rows known before", 2, _filter_margin(KNOWN)),
    Margin("the same, another 1 % with each query", 2, _filter_margin(OURS, "filtered_in_turn")),
    Margin(
        f"{ADDS:,} adds at 100,000, then searchable: hnswlib",
        50,
        _index("100000", "hnswlib", "adds", "wall_ratio"),
    ),
    *(
        Margin(
            f"recorded program run, ours `{name}`: {_MLFLOW}",
            80,
            _at("recorder", "peers", _MLFLOW, name, "cpu_ratio"),
        )
        for name in ("normal", "full")
    ),
)
"""What was to be reached, and where it stands in the results; CPU but for searches (wall)."""


def margins(results: Results) -> str:
    """Return the table of targets beside what was measured, as Markdown."""
    rows = [margin.row(results) for margin in MARGINS]
    return markdown(["theirs in units of ours", "target", "measured", "reached"], rows)


def headline(results: Results) -> str:
    """Return the README's table as Markdown: seven questions, those that others win included."""
    ndcg = results["quality"]["mean"]["ndcg"]
    append = results["write"]["peers"]["append"]["full"]
    loop = results["write"]["peers"]["loops"]["full"]["400"]
    size = list(results["search"]["steps"])[-1]
    peers = results["search"]["peers"]["sizes"][size]["peers"]
    nearest = {name: row.get("everything", row) for name, row in peers.items()}
    ours, count = nearest[OURS], f"{int(size):,} steps"
    rows = [
        [
            "right steps found: mean nDCG@10 of six tasks",
            f"{ndcg['this library (hybrid)']:.3f}; "
            f"{ndcg['this library, aim named']:.3f} with an `aim`",
            f"BM25 {ndcg['BM25, window text']:.3f}; dense {ndcg['dense, own text']:.3f}",
        ],
        [
            "one durable append, `full`",
            f"{append[OURS]['cpu_us']:.0f} µs",
            _others(_only(append, _BY_HAND, _STORE, _SESSION, _CHROMA), "cpu_ratio"),
        ],
        [
            "agent loop of 400 steps, `full`",
            f"{loop[OURS]['cpu_us'] / 1e3:.0f} ms",
            _others(_only(loop, _BY_HAND, _STORE, _SESSION, _SAVER), "cpu_ratio"),
        ],
        _recording(results)[-1],
        *_largest(results["scaling"]),
        [
            f"nearest vectors of {count}",
            f"{ours['wall_ms']:.2f} ms, recall {ours['recall']:.3f}",
            _others(_only(nearest, NUMPY, "hnswlib", "Qdrant Edge", _CHROMA), "wall_ratio"),
        ],
    ]
    table = markdown(["what", "this library", "others, in units of ours"], rows)
    conditions = f"On {results['search']['machine']}: CPU of writers, wall time of searches"
    every = "[all numbers, and what was missed](.github/docs/benchmarks.md)"
    return f"{table}\n\n{conditions}; above 1x we are cheaper. See {every}."


def _largest(found: Results) -> list[list[str]]:
    """Return rows of the largest sizes of `benchmarks scaling`."""
    steps, words = found["steps"], found["words"]
    sizes = list(steps)[-2:]
    counted = " and ".join(f"{int(size):,}" for size in sizes)
    beside = {"SQLite FTS5": ("times_faster",), "tantivy": ("tantivy", "ratio")}
    ratios = {name: [_at(size, *path)(words) for size in sizes] for name, path in beside.items()}
    return [
        [
            f"hybrid search of {counted} steps, p50; first answer of a fresh process",
            "; ".join(
                ", ".join(f"{steps[size][what]['p50_ms']:{form}} ms" for size in sizes)
                for what, form in (("search, hybrid", ".1f"), (SEARCH, ".0f"))
            ),
            "",
        ],
        [
            f"word search of {counted} steps",
            ", ".join(f"{words[size]['ours_ms']:.1f} ms" for size in sizes),
            "; ".join(
                f"{name} {', '.join(_times(each) for each in found if each)}"
                for name, found in ratios.items()
                if any(found)
            ),
        ],
    ]


def comparison(results: Results) -> str:
    """Return everything beside the peers, a row for each question, as Markdown."""
    rows = [*_writing(results), *_finding(results), *_recording(results), *_embedding(results)]
    return "\n\n".join(
        [markdown(["what", "this library", "others, in units of ours"], rows), _conditions(results)]
    )


def details(results: Results) -> str:
    """Return every table of the peers as Markdown, with what stands below each."""
    tables = [
        *write_tables(results["write"]["peers"]),
        *search_tables(results["search"]["peers"]),
        recorder_table(results["recorder"]["peers"]),
    ]
    return "\n\n".join(_with_notes(table) for table in tables)


def on_sizes(results: Results) -> str:
    """Return the tables of what grows as Markdown, and the machine they were measured on."""
    found, server = results["scaling"], results.get("postgres_scaling")
    every = [*scaling_tables(found), *(server_tables(server) if server else ())]
    load = f"load average before: {found['load_average']}"
    return "\n\n".join([*map(_with_notes, every), f"On {found['machine']}; {load}."])


def on_postgres(results: Results) -> str:
    """Return the tables of PostgreSQL as Markdown, and the machine they were measured on."""
    found = results["postgres_peers"]
    tables = [_with_notes(table) for table in postgres_tables(found, walls=False)]
    return "\n\n".join([*tables, f"On {found['machine']}."])


def _with_notes(table: Table) -> str:
    heads = [head or " " for head in table.columns]
    notes = "\n".join(f"* {note}" for note in table.notes)
    return "\n\n".join(filter(None, [f"**{table.title}**", markdown(heads, table.rows), notes]))


def _conditions(results: Results) -> str:
    write, search = results["write"], results["search"]
    peers = {**write["peers"]["versions"], **search["peers"]["versions"]}
    known = {version for name, version in peers.items() if version and name not in (OURS, NUMPY)}
    loads = ", ".join(
        f"{name} {results[name]['peers_conditions']['load_average']}"
        for name in ("write", "search", "recorder")
    )
    return (
        f"On {search['machine']}; {', '.join(sorted(known))}. Load average before measuring: "
        f"{loads}. CPU of the process for writing and recording, wall time for searching; "
        "interleaved, medians; above 1 we are cheaper."
    )


def _writing(results: Results) -> list[list[str]]:
    found = results["write"]["peers"]
    parts = {f"one durable append, `{name}`": part for name, part in found["append"].items()}
    parts |= {
        f"batch of {BATCH:,}, per step": found["batch"],
        "read a run back, per step": found["read_run"],
    }
    rows = [
        [what, f"{part[OURS]['cpu_us']:.0f} µs", _others(part, "cpu_ratio")]
        for what, part in parts.items()
    ]
    for durability, sizes in found["loops"].items():
        for size, part in sizes.items():
            what, cost = f"agent loop of {size} steps, `{durability}`", part[OURS]["cpu_us"] / 1e3
            rows.append([f"{what}: CPU", f"{cost:.1f} ms", _others(part, "cpu_ratio")])
    for size, part in found["loops"]["full"].items():
        what, left = f"agent loop of {size} steps: bytes", part[OURS]["bytes"] / 1024
        rows.append([what, f"{left:,.0f} KiB", _others(part, "bytes_ratio")])
    return rows


def _finding(results: Results) -> list[list[str]]:
    rows: list[list[str]] = []
    sizes = _part(results, "search", "peers", "sizes")
    for size, found in sizes.items():
        peers, count = found["peers"], f"{int(size):,}"
        for part, what in (
            ("everything", f"nearest of {count}, dimension {found['dimension']}"),
            ("filtered", f"nearest within 1 % of {count}"),
            ("filtered_in_turn", f"the same, another 1 % with each query, of {count}"),
            ("adds", f"{ADDS:,} adds at {count}, then searchable"),
        ):
            measured = {
                name: row.get(part, row)
                for name, row in peers.items()
                if part in row or "missing" in row
            }
            if (ours := measured.get(OURS)) is None:
                continue
            recall = f", recall {ours['recall']:.3f}" if "recall" in ours else ""
            cost = f"{ours['wall_ms']:.2f} ms{recall}"
            rows.append([what, cost, _others(measured, "wall_ratio")])
    return rows


def _recording(results: Results) -> list[list[str]]:
    rows: list[list[str]] = []
    for durability in ("normal", "full"):
        found = {
            name: row.get(durability, row)
            for name, row in _part(results, "recorder", "peers").items()
        }
        costs = [f"{row['cpu_us']:,.0f} µs" for row in found.values() if "missing" not in row]
        what = f"record a program run, over DSPy's dispatch, `{durability}`"
        rows.append([what, costs[0] if costs else "-", _others(found, "cpu_ratio")])
    return rows


def _embedding(results: Results) -> list[list[str]]:
    found = _part(results, "embed", "embedders")
    words = ", ".join(
        f"`{name}` {row['missing'] if 'missing' in row else _per_second(row)}"
        for name, row in found.items()
    )
    return [["embed real step texts", words, ""]]


def _per_second(row: Results) -> str:
    return f"{row['texts_per_second']:,.0f}/s"


def _others(part: Results, key: str) -> str:
    """Return each peer's ratio, with its recall where it is below one."""
    shown: list[str] = []
    for name, row in part.items():
        if name in (OURS, GRAPH):
            continue
        if "missing" in row:
            shown.append(f"{name} {row['missing']}")
            continue
        recall = row.get("recall", 1.0)
        extra = "" if recall >= 0.9995 else f" (recall {recall:.3f})"
        shown.append(f"{name} {_times(row[key])}{extra}")
    return "; ".join(shown)


def _times(value: float) -> str:
    return f"{value:,.0f}x" if value >= 9.95 else f"{value:.2g}x" if value < 1 else f"{value:.1f}x"


def _only(part: Results, *names: str) -> dict[str, Any]:
    return {name: part[name] for name in names if name in part}


def _part(results: Results, *path: str) -> Results:
    """Return what stands under a path, nothing where it was not measured."""
    value: Any = results
    for key in path:
        value = value.get(key, {})
    return value
