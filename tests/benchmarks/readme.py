"""The numbers of README and documentation: measured, kept as JSON, written between marks.

Run in a checkout. Nobody types a number: a test compares the pages with what `sections` makes of
the JSON file, and the JSON file is what the other measurements returned.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from hybridagi_steps.errors import ExchangeError
from tests.benchmarks import CHECKOUT
from tests.benchmarks.comparison import (
    comparison,
    details,
    headline,
    margins,
    on_postgres,
    on_sizes,
)
from tests.benchmarks.experience import block
from tests.benchmarks.goals import goals
from tests.benchmarks.learning import block as learning_block
from tests.benchmarks.tables import markdown, print_json

MEASUREMENTS = (
    *("quality", "write", "search", "scaling", "recorder", "embed", "http"),
    *("postgres_peers", "postgres_scaling", "learning"),
)
BY_NAME = ("experience",)
"""Measured only when they are named, since they serve a model that is not installed everywhere."""
README = Path("README.md")
PAGE = Path(".github", "docs", "benchmarks.md")
LEARNING = Path(".github", "docs", "optimising.md")
RESULTS = Path(".github", "measured.json")

_QUALITY = (
    *("BM25, own text", "BM25, window text", "dense, own text"),
    *("this library (hybrid)", "this library, aim named"),
)


def report(json_output: bool = False, **options: Any) -> None:
    """Measure, and write the pages and .github/measured.json of the checkout in this folder."""
    results = measure(**options)
    if json_output:
        print_json(results)


def measure(only: str = "", million: bool = False, workdir: str = "") -> dict[str, Any]:
    """Return all results: those of the last run, with some (or all) measured again.

    Args:
        only: The measurements to repeat, with commas between them; by default all of them. `none`
            writes the pages anew from the numbers there are.
        million: Measure also 1,000,000 vectors, and steps.
        workdir: Folder in which `scaling` keeps what it built for the next time.

    Raises:
        ExchangeError: This folder is no checkout, or there is no such measurement.
    """
    if not README.is_file() or _mark("bench") not in README.read_text("utf-8"):
        raise ExchangeError("run this in a checkout: its README.md has the marks to write between.")
    asked = MEASUREMENTS if not only else [] if only == "none" else only.split(",")
    known = (*MEASUREMENTS, *BY_NAME)
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ExchangeError(f"no measurement {unknown[0]!r}; there are {', '.join(known)}.")
    results: dict[str, Any] = orjson.loads(RESULTS.read_bytes()) if RESULTS.is_file() else {}
    for name in asked:
        more = ["--million"] if million and name in ("search", "scaling") else []
        more += ["--workdir", workdir] if workdir and name == "scaling" else []
        results[name] = _measured_alone(name, more)
        option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        RESULTS.write_bytes(orjson.dumps(results, option=option))
    for page, parts in sections(results).items():
        text = page.read_text("utf-8")
        for mark, part in parts.items():
            text = _between(text, mark, part)
        page.write_text(text, "utf-8")
    return results


def sections(results: dict[str, Any]) -> dict[Path, dict[str, str]]:
    """Return what stands on each page between which marks."""
    experience = block(results["experience"])
    return {
        README: {"bench": headline(results), "experience": experience},
        LEARNING: {"experience": experience, "learning": learning_block(results["learning"])},
        PAGE: {
            "bench": tables(results),
            "comparison": comparison(results),
            "margins": margins(results),
            "goals": goals(results),
            "scaling": on_sizes(results),
            "peers": details(results),
            "postgres": on_postgres(results),
        },
    }


def inside(text: str, mark: str) -> str:
    """Return what stands between two marks of a page."""
    return text[text.index(_mark(mark)) + len(_mark(mark)) : text.index(_mark(f"/{mark}"))].strip()


def _between(text: str, mark: str, part: str) -> str:
    before, after = text[: text.index(_mark(mark))], text[text.index(_mark(f"/{mark}")) :]
    return f"{before}{_mark(mark)}\n{part}\n{after}"


def _mark(name: str) -> str:
    return f"<!-- {name} -->"


def _measured_alone(name: str, more: list[str]) -> dict[str, Any]:
    """Measure in a process of its own: what one leaves in memory would slow the next."""
    command = [sys.executable, "-m", "tests.benchmarks", name, "--json", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=CHECKOUT)
    return orjson.loads(done.stdout[done.stdout.index(b"{") :])


def tables(results: dict[str, Any]) -> str:
    """Return quality and costs as Markdown."""
    parts = [_quality(results["quality"]), _costs(results), _machine(results)]
    return "\n\n".join(parts)


def _quality(found: dict[str, Any]) -> str:
    """nDCG@10 per task, ours last; an aim is named where the task has one."""
    rows = [
        [f"{task['task']} ({task['questions']})", *_cells(task["ndcg"], "")]
        for task in sorted(found["tasks"], key=lambda task: not task["in_mean"])
    ]
    averaged = sum(task["in_mean"] for task in found["tasks"])
    rows.insert(averaged, ["**mean** of the above", *_cells(found["mean"]["ndcg"], "**")])
    return markdown(["nDCG@10, task (questions)", *_QUALITY], rows)


def _cells(ndcg: dict[str, float], mark: str) -> list[str]:
    return [f"{mark}{ndcg[name]:.3f}{mark}" for name in _QUALITY]


def _costs(results: dict[str, Any]) -> str:
    """What the rest costs, one line per question."""
    write, recorder = results["write"], results["recorder"]
    size, search = list(results["search"]["steps"].items())[-1]
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
            "recorder per step above DSPy's own dispatch, CPU",
            f"{recorder['recorder']['cpu_us']:.0f} µs, "
            f"and {recorder['store']['cpu_us']:.0f} µs for the store",
        ],
    ]
    return markdown(["what", "measured"], rows)


def _machine(results: dict[str, Any]) -> str:
    found = results["search"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    halves = "the weights of aims were chosen with both halves in sight"
    told = f"Tasks and halves: decision record 3; {halves}."
    return f"On {found['machine']} with {versions}; medians. {told}"
