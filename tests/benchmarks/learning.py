"""What learning from steps is worth, each task held out: the tables of decision 0026."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import hybridagi_steps as hs
from hybridagi_steps.embedders.resolution import resolve_embedder
from hybridagi_steps.errors import MissingExtraError
from tests.benchmarks.conditions import conditions
from tests.benchmarks.learning_copier import (
    COPIES,
    KNN,
    LABELED,
    OURS,
    Answers,
    copier_answers,
    experienced,
    gains,
    poisoned,
    tuned,
)
from tests.benchmarks.learning_model import MODEL_ROWS, model_answers
from tests.benchmarks.learning_outlook import (
    FIRST,
    agreement_errors,
    decisive_steps,
    loops_table,
    outlook_table,
    same_task_hits,
)
from tests.benchmarks.learning_runs import (
    RealRun,
    of_domain,
    plain_memory,
    played_runs,
    real_runs,
    recorded_memory,
)
from tests.benchmarks.ranking import interval, interval_text, paired
from tests.benchmarks.tables import Table, markdown, number, print_json, print_tables

_NEIGHBOURS, _SIZES = 8, (4, 8, 16)
_CHANCE = 0.5
_FEWEST_TASKS = 20
"""Tasks below which an interval says little."""


def measure(
    *,
    runs: str = "",
    embedder: str = "auto",
    k: int = 3,
    tune: bool = False,
    model: bool = False,
) -> dict[str, Any]:
    """Measure what recall, outlook, agreement and loops are worth on runs that nobody here made.

    Memory and question never share a task. Intervals are of a bootstrap over whole tasks.

    Args:
        runs: A file in the form of data/runs.jsonl, its steps beside it; by default those shipped.
        embedder: What turns steps into vectors.
        k: How many demonstrations a call is given.
        tune: Also try other weights of the ranking.
        model: Also ask a real small model, served on this machine, for ten minutes at most.
    """
    begin = time.process_time()
    given = real_runs(runs)
    played = played_runs(given)
    source = f"{runs or 'data/'}, {played[0].domain}" if played else runs or "data/"
    found = conditions(embedder=embedder, k=k, runs=source, tasks=_tasks(played))
    if played:
        found |= _copier(given, played, embedder, k, tune=tune)
        if model:
            found["model"] = model_answers(played, embedder, k)
    found["domains"] = {
        domain: _by_domain(of_domain(given, domain), embedder)
        for domain in sorted({run.domain for run in given})
    }
    found["cpu_seconds"] = time.process_time() - begin
    return found


def report(*, json_output: bool, **options: Any) -> None:
    """Print what `measure` returns, and the block of the pages."""
    result = measure(**options)
    if json_output:
        print_json(result)
        return
    print_tables(list(_tables(result)), result)
    print(f"\n{block(result)}")


def block(result: Mapping[str, Any]) -> str:
    """Return what the pages show of it: recall beside demonstrations, and what runs tell."""
    options = result["options"]
    head = (
        f"Next action of {options['tasks']} unseen tasks ({options['runs']}), each held out, plain "
        "replies left out, a model that copies one demonstration "
        "(`python -m tests.benchmarks learning`):"
    )
    answers = markdown(
        ["", "accuracy [95 %]", "calls an answer"],
        [
            [_short(name), interval_text(row["without replies"]), number(row["lm_calls"], 1)]
            for name, row in result["copier"].items()
        ],
    )
    gains = result["gains"].items()
    gained = [f"{OURS} minus {_short(n)}: {_signed(gain)}{_verdict(gain)}." for n, gain in gains]
    judged = {name: each for name, each in result["domains"].items() if each["outlook"]}
    rows = [
        ["runs that failed", *(interval_text(each["loops"]["failed"]) for each in judged.values())],
        [
            "runs with a loop, and how many of these failed",
            *(_loops_cell(each["loops"]) for each in judged.values()),
        ],
        [
            "outlook: area under the curve",
            *(_area_cell(each["outlook"]["outlook"]) for each in judged.values()),
        ],
    ]
    told = markdown(["", *(f"{n}, {each['outlook']['runs']}" for n, each in judged.items())], rows)
    decided = [
        f"Of {each['decisive']['runs']} runs of {name} whose decisive step people marked, the "
        f"first trouble was that step in {interval_text(each['decisive']['right'])}; by chance "
        f"{number(each['decisive']['chance'], 2)}."
        for name, each in result["domains"].items()
        if each["decisive"]
    ]
    lead = "What can be told of runs without any model:"
    return "\n\n".join([head, answers, " ".join(gained), lead, told, *decided])


def _short(name: str) -> str:
    """Return the name of a way without the version of its embedder."""
    before, version, _ = name.partition("/")
    return f"{before})" if version else name


def _loops_cell(found: Mapping[str, Any]) -> str:
    if not found["flagged"]:
        return "0"
    unclear = found["flagged_failed"]["low"] <= found["failed"]["mean"]
    verdict = ": no signal" if unclear else ""
    return f"{found['flagged']}, {interval_text(found['flagged_failed'])}{verdict}"


def _area_cell(found: Mapping[str, Any]) -> str:
    verdict = ": misleads" if found["high"] < _CHANCE else ": no signal"
    return interval_text(found) + ("" if found["low"] > _CHANCE else verdict)


def _copier(
    given: Sequence[RealRun], played: Sequence[RealRun], embedder: str, k: int, *, tune: bool
) -> dict[str, Any]:
    with recorded_memory(played, embedder) as memory:
        answers = copier_answers(played, memory, k, _embedders(memory))
        found: dict[str, Any] = {"copier": {name: _row(each) for name, each in answers.items()}}
        rivals = [name for name in answers if name.startswith(KNN) or name == LABELED]
        found["gains"] = {name: gains(answers, name) for name in rivals}
        more = {
            "among 5": experienced(played, memory, 5),
            "among 8": experienced(played, memory, 8),
        }
        found["among"] = {
            name: interval(each.without_replies(each.among))._asdict()
            for name, each in {f"among {k}": answers[OURS], **more}.items()
        }
        ours = answers[OURS].without_replies(answers[OURS].right)
        tools = sorted({state.tool for run in played for state in run.states()})
        hard = {"poisoned, scored": True, "poisoned, unscored": False}
        found["losses"] = {}
        for name, scored in hard.items():
            with poisoned(memory, tools, scored=scored) as worse:
                least = {"min_score": 0.0} if scored else {}
                theirs = experienced(played, worse, k, **least)
            found["losses"][name] = _loss(ours, theirs)
        if tune:
            found["grid"] = tuned(played, memory)
    others = [run for run in given if run.domain != played[0].domain]
    if others:
        with recorded_memory([*others, *played], embedder) as mixed:
            steps = sum(len(run.states()) for run in others)
            share = steps / (steps + sum(len(run.states()) for run in played))
            name = f"{share:.0%} steps of other domains"
            found["losses"][name] = _loss(ours, experienced(played, mixed, k))
    return found


def _by_domain(runs: Sequence[RealRun], embedder: str) -> dict[str, Any]:
    with plain_memory(runs, embedder) as memory:
        return {
            "runs": len(runs),
            "tasks": _tasks(runs),
            "calibration": agreement_errors(runs, memory, _SIZES),
            "outlook": outlook_table(runs, memory, _NEIGHBOURS),
            "loops": loops_table(runs),
            "same_task": same_task_hits(runs, memory),
            "decisive": decisive_steps(runs),
        }


def _embedders(memory: hs.StepMemory) -> dict[str, Any]:
    """Return what KNNFewShot is tried with: this memory's embedder, and MiniLM where it is."""
    found = {memory.embedder.model_id.partition(":")[0]: memory.embedder}
    with suppress(MissingExtraError):  # the table says which embedders it was
        found["MiniLM"] = resolve_embedder("sentence-transformers")
    return found


def _row(answers: Answers) -> dict[str, Any]:
    return {
        "without replies": interval(answers.without_replies(answers.right))._asdict(),
        "with replies": interval(answers.right)._asdict(),
        "lm_calls": answers.lm_calls,
        "lm_tokens": answers.lm_tokens,
        "cpu_seconds": answers.cpu_seconds,
    }


def _loss(ours: dict[str, list[float]], theirs: Answers) -> dict[str, Any]:
    return interval(paired(ours, theirs.without_replies(theirs.right)))._asdict()


def _tasks(runs: Sequence[RealRun]) -> int:
    return len({run.task for run in runs})


def _tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield the tables that have something to show, or to say."""
    return (table for table in _all_tables(result) if table.rows or table.notes)


def _all_tables(result: dict[str, Any]) -> Iterator[Table]:
    options = result["options"]
    few = options["tasks"] < _FEWEST_TASKS
    said = [f"{options['tasks']} tasks: too few for an interval to say much."] if few else []
    if "copier" in result:
        yield _copier_table(result, options, said)
        yield Table(
            f"{OURS} minus others, without replies",
            ["", "difference [95 %]"],
            [[name, _signed(each)] for name, each in result["gains"].items()],
        )
        yield Table(
            "right tool among the demonstrations, without replies",
            ["", "share [95 %]"],
            [[name, interval_text(each)] for name, each in result["among"].items()],
        )
        yield Table(
            "what it costs to be found among others",
            ["", "loss [95 %]"],
            [[name, _signed(each)] for name, each in result["losses"].items()],
            [f"Poisoned: {COPIES} copies of each run with the same words and wrong actions."],
        )
    if "grid" in result:
        names = ("prefer", "accuracy", "among_3")
        rows = [
            [number(row[name], 2 + (place > 0)) for place, name in enumerate(names)]
            for row in result["grid"]
        ]
        yield Table("other weights, without replies", names, rows)
    if "model" in result:
        yield _model_table(result["model"])
    yield from _domain_tables(result["domains"])
    yield Table("cost", ["", "CPU seconds"], [["everything", number(result["cpu_seconds"], 1)]])


def _copier_table(result: dict[str, Any], options: dict[str, Any], said: list[str]) -> Table:
    rows = [
        [
            name,
            interval_text(row["without replies"]),
            interval_text(row["with replies"]),
            number(row["lm_calls"], 1),
            number(row["lm_tokens"], 0),
            number(row["cpu_seconds"], 2),
        ]
        for name, row in result["copier"].items()
    ]
    return Table(
        f"next action of unseen tasks, a model that copies, {options['runs']}",
        ["", "without replies [95 %]", "replies included", "LM calls", "tokens", "CPU s"],
        rows,
        [*said, "Split by task: each is held out. Calls and tokens are for one answer."],
    )


def _model_table(found: dict[str, Any]) -> Table:
    rows = [[name, interval_text(found["rows"][name])] for name in MODEL_ROWS]
    rows += [
        [f"{MODEL_ROWS[-1]} minus {name}", _signed(each) + _verdict(each)]
        for name, each in found["gains"].items()
    ]
    title = (
        f"the same with a real small model, {found['states']} states in {found['seconds']:.0f} s"
    )
    return Table(title, ["", "without replies [95 %]"], rows)


def _verdict(found: dict[str, Any]) -> str:
    low, high = found["low"], found["high"]
    unclear = low is None or high is None or low <= 0 <= high
    return ": no gain shown" if unclear else ""


def _domain_tables(domains: dict[str, Any]) -> Iterator[Table]:
    rows = [
        [name, str(found["runs"]), str(found["tasks"])]
        + [
            number(found["calibration"][str(k)][what], 2)
            for what in ("agreement", "outlook")
            for k in _SIZES
        ]
        for name, found in domains.items()
    ]
    heads = [f"{what} {k}" for what in ("agreement", "outlook") for k in _SIZES]
    yield Table("calibration error by neighbours", ["", "runs", "tasks", *heads], rows)
    judged = {name: each["outlook"] for name, each in domains.items() if each["outlook"]}
    parts = ("outlook", "first steps", "run length")
    yield Table(
        "does it tell good runs from others: area under the curve [95 %]",
        ["", "runs", "outlook", f"after {FIRST} steps", "run length"],
        [
            [name, str(each["runs"]), *(interval_text(each[part]) for part in parts)]
            for name, each in judged.items()
        ],
        ["Ranked by the distance to the share of good steps among what was left in."],
    )
    looped = {name: each["loops"] for name, each in domains.items() if each["loops"]}
    yield Table(
        "same call, same result, twice: how many of these runs failed",
        ["", "runs", "failed", "with a loop", "of these failed [95 %]"],
        [
            [
                *(name, str(each["runs"]), interval_text(each["failed"]), str(each["flagged"])),
                interval_text(each["flagged_failed"]) if each["flagged_failed"] else "-",
            ]
            for name, each in looped.items()
        ],
    )
    yield _same_task_table(domains)
    decided = {name: each["decisive"] for name, each in domains.items() if each["decisive"]}
    yield Table(
        "first trouble is the step that people say decided (no claim)",
        ["", "runs", "right [95 %]", "by chance"],
        [
            [name, str(each["runs"]), interval_text(each["right"]), number(each["chance"], 2)]
            for name, each in decided.items()
        ],
    )


def _same_task_table(domains: dict[str, Any]) -> Table:
    seen = {name: each["same_task"] for name, each in domains.items() if each["same_task"]}
    return Table(
        "same task seen before: one of its steps among 5 hits [95 %]",
        ["", "tasks", "first message", "any state"],
        [
            [name, str(each["tasks"])]
            + [interval_text(each[part]) for part in ("first message", "any state")]
            for name, each in seen.items()
        ]
        or [["none of these", "0", "-", "-"]],
        [] if seen else ["No task of these has two runs: not measured."],
    )


def _signed(found: dict[str, Any]) -> str:
    return interval_text(found, signed=True)
