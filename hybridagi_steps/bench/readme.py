"""The numbers of the README: measured in one run, kept as JSON, written between two marks.

Run in a checkout. Nobody types a number: a test compares the README with what `tables` makes of the
JSON file, and the JSON file is what the other measurements returned.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from hybridagi_steps.bench.tables import print_json
from hybridagi_steps.errors import ExchangeError

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
MEASUREMENTS = ("quality", "write", "search", "recorder", "lexical")
RESULTS = Path(".github", "measured.json")

_QUALITY = ("BM25, own text", "BM25, window text", "dense, own text", "this library (hybrid)")


def report(json_output: bool = False, **options: Any) -> None:
    """Measure, and write README.md and .github/measured.json of the checkout in this folder."""
    results = measure(**options)
    if json_output:
        print_json(results)


def measure(only: str = "") -> dict[str, Any]:
    """Return all results: those of the last run, with one (or all) measured again.

    Args:
        only: The one measurement to repeat; by default all of them.

    Raises:
        ExchangeError: This folder is no checkout, or there is no such measurement.
    """
    readme = Path("README.md")
    if not readme.is_file() or BEGIN not in readme.read_text("utf-8"):
        raise ExchangeError("run this in a checkout: its README.md has the marks to write between.")
    if only and only not in MEASUREMENTS:
        raise ExchangeError(f"no measurement {only!r}; there are {', '.join(MEASUREMENTS)}.")
    results: dict[str, Any] = orjson.loads(RESULTS.read_bytes()) if RESULTS.is_file() else {}
    for name in MEASUREMENTS:
        if not only or name == only:
            results[name] = _measured_alone(name)
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    RESULTS.write_bytes(orjson.dumps(results, option=option))
    text = readme.read_text("utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    plain: dict[str, Any] = orjson.loads(RESULTS.read_bytes())
    readme.write_text(f"{before}{BEGIN}\n{tables(plain)}\n{after}", "utf-8")
    return results


def _measured_alone(name: str) -> dict[str, Any]:
    """Measure in a process of its own: what one leaves in memory would slow the next."""
    command = [sys.executable, "-m", "hybridagi_steps", "bench", name, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own words
    return orjson.loads(done.stdout)


def tables(results: dict[str, Any]) -> str:
    """Return the README's tables as Markdown."""
    parts = [_quality(results["quality"]), _costs(results), _machine(results)]
    return "\n\n".join(parts)


def _quality(found: dict[str, Any]) -> str:
    """nDCG@10 per task, ours last."""
    rows = [
        [f"{task['task']} ({task['questions']})", *_cells(task["ndcg"], "")]
        for task in found["tasks"]
    ]
    rows.append(["**mean**", *_cells(found["mean"]["ndcg"], "**")])
    return _markdown(["nDCG@10, task (questions)", *_QUALITY], rows)


def _cells(ndcg: dict[str, float], mark: str) -> list[str]:
    return [f"{mark}{ndcg[name]:.3f}{mark}" for name in _QUALITY]


def _costs(results: dict[str, Any]) -> str:
    """What the rest costs, one line per question."""
    write, recorder = results["write"], results["recorder"]
    size, search = list(results["search"]["steps"].items())[-1]
    words = results["lexical"]["steps"][size]
    count = f"{int(size):,} steps"
    index = search["index"]
    rows = [
        [
            "one durable append, CPU beside a bare `sqlite3` insert of the same bytes",
            ", ".join(
                f"{found['cpu_ratio']:.2f}x (`{durability}`)"
                for durability, found in write["append"].items()
            ),
        ],
        [
            "indexing a step later, CPU",
            f"{write['drain']['words']['cpu_us']:.0f} µs words, "
            f"{write['drain']['embeddings']['cpu_us']:.0f} µs embedding",
        ],
        [
            f"disk per byte of inputs and outputs, {write['disk']['steps']} one-KB steps",
            f"{write['disk']['ratio']:.2f} closed, {write['disk']['ratio_while_open']:.2f} in use, "
            f"{write['disk']['ratio_indexed']:.2f} with words, keys and embeddings",
        ],
        [
            f"hybrid search at {count}, p50",
            f"{search['search']['hybrid']['p50_ms']:.1f} ms",
        ],
        [
            f"open {count} in a fresh process and answer the first search, imports done",
            f"{search['first_search']['answered_ms']:.0f} ms",
        ],
        [
            f"index call at {count} beside NumPy over everything",
            f"{index['everything']['times_faster']:.1f}x faster, "
            f"recall@10 {index['everything']['recall']:.4f}",
        ],
        [
            f"the same within a filter of 1 % of {count}",
            f"{index['filtered']['times_faster']:.1f}x faster, "
            f"recall@10 {index['filtered']['recall']:.4f}",
        ],
        [
            f"word search at {count} beside SQLite FTS5",
            f"{words['times_faster']:.0f}x faster",
        ],
        [
            "recorder per step above DSPy's own dispatch, CPU",
            f"{recorder['recorder']['cpu_us']:.0f} µs, "
            f"and {recorder['store']['cpu_us']:.0f} µs for the store",
        ],
    ]
    return _markdown(["what", "measured"], rows)


def _machine(results: dict[str, Any]) -> str:
    found = results["search"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"On {found['machine']} with {versions}; medians. Tasks and halves: decision record 3."


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
