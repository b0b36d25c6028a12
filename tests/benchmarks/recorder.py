"""What recording adds to a DSPy program's own time, and what of it is the store's write.

One program (a module, two predictors and a tool, on a scripted model) runs five ways, taking turns:
alone, with a callback that does nothing, recorded into a memory that does nothing, and recorded
into a file, without and with what the model saw. DSPy's dispatch to callbacks is not ours, so the
recorder's own share is what the third takes over the second; the store's share is what the fourth
takes over the third, that of prompts what the fifth takes over the fourth. MLflow's autolog, which
takes a hundred times as long, is measured on its own turns beside the second and the fourth.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import dspy
from dspy.utils.callback import BaseCallback

from hybridagi_steps.memory import Durability, StepMemory
from hybridagi_steps.recording.recorder import StepRecorder
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.testing import scripted_lm
from tests.benchmarks.conditions import conditions
from tests.benchmarks.peers import NOT_INSTALLED, TRACERS, Peer, check_names, chosen
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import excess, fastest, interleaved, typical

ALONE, DISPATCH, RECORDED, STORED = "alone", "no-op callback", "recorder, no store", "recorder"
PROMPTED = "recorder, prompts kept"

_QUESTION = "May a basic economy ticket be cancelled within a day of booking, and for what refund?"
_POLICY = (
    "Any reservation can be cancelled within 24 hours of booking. Otherwise basic economy " * 8
)


def report(json_output: bool = False, **options: Any) -> None:
    """Print what recording costs; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(
    rounds: int = 60, runs: int = 5, durability: Durability = "normal", peers: str = "all"
) -> dict[str, Any]:
    """Return times in microseconds per recorded step, and the shares of recorder and store.

    Args:
        rounds: How often each way is measured.
        runs: Program runs per measured sample.
        durability: That of the file memory.
        peers: Whom to measure beside us: all, none, or how their names begin, with commas between.
    """
    check_names(peers)
    nowhere, program = _Nowhere(), _Refund()
    with (
        tempfile.TemporaryDirectory() as folder,
        StepMemory(Path(folder) / "steps.db", durability=durability) as memory,
        StepMemory(Path(folder) / "prompts.db", durability=durability) as prompted,
    ):
        rivals = {
            ALONE: _running(program, runs),
            DISPATCH: _running(program, runs, BaseCallback()),
            RECORDED: _running(program, runs, StepRecorder(nowhere)),
            STORED: _running(program, runs, StepRecorder(memory)),
            PROMPTED: _running(program, runs, StepRecorder(prompted, keep_prompts=True)),
        }
        samples = interleaved(rivals, rounds, warm_up=3)
        stored = sum(1 for _ in memory.iter_steps())
        bytes_of_prompts = prompted.stats()["bytes"] - memory.stats()["bytes"]
    before = conditions()
    beside = _beside_peers(program, runs, chosen(TRACERS, peers), max(2, rounds // 2))
    steps = stored // ((rounds + 3) * runs)
    per = steps * runs
    return {
        **conditions(rounds=rounds, runs=runs, durability=durability, peers=peers),
        "steps_per_run": steps,
        "times": {
            name: {
                "cpu_us": typical(found, "cpu", per=per),
                "cpu_us_least": fastest(found, "cpu", per=per),
                "wall_us": typical(found, "wall", per=per),
            }
            for name, found in samples.items()
        },
        "dispatch": excess(samples[DISPATCH], samples[ALONE], per=per),
        "recorder": excess(samples[RECORDED], samples[DISPATCH], per=per),
        "store": excess(samples[STORED], samples[RECORDED], per=per),
        "prompts": excess(samples[PROMPTED], samples[STORED], per=per),
        "prompt_bytes_per_step": bytes_of_prompts / stored,
        "peers_conditions": before,
        "peers": beside,
    }


def _beside_peers(
    program: dspy.Module, runs: int, peers: Sequence[Peer], rounds: int
) -> dict[str, Any]:
    """Return what program runs take more when they are recorded, by us and by each peer.

    DSPy's dispatch to a callback that does nothing is taken off both. Ours runs at both
    durabilities; the peers' files are synced, as ours are at `full`.
    """
    found: dict[str, Any] = {}
    for peer in peers:
        adapter = peer.load()
        if adapter is None:
            found[peer.name] = {"missing": NOT_INSTALLED}
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(adapter(Path(folder))) as tracing,
            StepMemory(Path(folder) / "normal.db", durability="normal") as normal,
            StepMemory(Path(folder) / "full.db", durability="full") as full,
        ):
            rivals = {
                DISPATCH: _running(program, runs, BaseCallback()),
                "normal": _running(program, runs, StepRecorder(normal)),
                "full": _running(program, runs, StepRecorder(full)),
                peer.name: _running_under(program, runs, tracing.dspy_settings()),
            }
            samples = interleaved(rivals, rounds, warm_up=2)
            spans = tracing.spans() / (rounds + 2) / runs
            assert spans >= 1
        theirs = excess(samples[peer.name], samples[DISPATCH], per=runs)
        found[peer.name] = {
            "version": peer.version(),
            "settings": tracing.settings,
            "spans_per_run": spans,
            "theirs_us": {"cpu": theirs["cpu_us"], "wall": theirs["wall_us"]},
            **{
                name: _beside(excess(samples[name], samples[DISPATCH], per=runs), theirs)
                for name in ("normal", "full")
            },
        }
    return found


def _beside(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """Return our times, and theirs in units of them."""
    ratios = {
        f"{clock}_ratio": theirs[f"{clock}_us"] / ours[f"{clock}_us"] for clock in ("cpu", "wall")
    }
    return {"cpu_us": ours["cpu_us"], "wall_us": ours["wall_us"], **ratios}


class _Refund(dspy.Module):
    """Looks a rule up, decides, answers."""

    def __init__(self) -> None:
        super().__init__()
        self.decide = dspy.Predict("question, policy -> allowed: bool")
        self.answer = dspy.Predict("question, policy, allowed: bool -> answer")
        self.look_up = dspy.Tool(_look_up, name="look_up_policy")

    def forward(self, question: str) -> Any:
        policy = self.look_up(query=question)
        allowed = self.decide(question=question, policy=policy).allowed
        return self.answer(question=question, policy=policy, allowed=allowed)


def _look_up(query: str) -> str:
    """Return the policy that answers a question."""
    return f"{_POLICY} ({len(query)} characters asked)"


class _Nowhere:
    """A memory that keeps nothing."""

    def add(self, step_or_steps: AgentStep, /) -> None:
        """Forget the step."""

    def run(self, run_id: str, /) -> list[AgentStep]:
        """Return nothing."""
        return []


def _running(program: dspy.Module, runs: int, *callbacks: BaseCallback) -> Callable[[], None]:
    return _running_under(program, runs, {"callbacks": list(callbacks)})


def _running_under(program: dspy.Module, runs: int, settings: dict[str, Any]) -> Callable[[], None]:
    model = scripted_lm()

    def several() -> None:
        with dspy.context(lm=model, **settings):
            for _ in range(runs):
                cast("Any", program)(question=_QUESTION)

    return several


def _tables(result: dict[str, Any]) -> list[Table]:
    rows = [_row(name, times) for name, times in result["times"].items()]
    shares = {
        "DSPy's dispatch (no-op callback - alone)": "dispatch",
        "recorder's own share (no store - no-op callback)": "recorder",
        "the store's write (recorder - no store)": "store",
        "keep_prompts (prompts kept - recorder)": "prompts",
    }
    rows += [_row(name, result[key]) for name, key in shares.items()]
    size = number(result["prompt_bytes_per_step"], 0)
    title = f"one program run of {result['steps_per_run']} recorded steps, per step"
    title += f"; prompts kept take {size} bytes more"
    return [
        Table(title, ["", "CPU µs", "least", "wall µs"], rows),
        *([peer_table(result["peers"])] if result["peers"] else []),
    ]


def peer_table(beside: dict[str, Any]) -> Table:
    """Return the table of what the peers took."""
    rows: list[list[str]] = []
    for name, found in beside.items():
        if "missing" in found:
            rows.append([name, str(found["missing"]), *[""] * 5])
            continue
        for durability in ("normal", "full"):
            ours, theirs = found[durability], found["theirs_us"]
            times = (ours["cpu_us"], ours["wall_us"], theirs["cpu"], theirs["wall"])
            ratios = [number(ours[f"{clock}_ratio"], 0) for clock in ("cpu", "wall")]
            what = f"{name}; ours `{durability}` ({found['version']}; {found['settings']})"
            rows.append([what, *(number(value, 0) for value in times), *ratios])
    columns = ["", "our CPU µs", "wall", "their CPU µs", "wall", "CPU x ours", "wall x ours"]
    return Table("one recorded program run, over a callback that does nothing", columns, rows)


def _row(name: str, times: dict[str, float]) -> list[str]:
    keys = ("cpu_us", "cpu_us_least", "wall_us")
    return [name, *(number(times[key], 0) for key in keys)]
