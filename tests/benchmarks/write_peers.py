"""What keeping steps costs in `StepMemory` and in what others keep them in, side by side.

Real steps, made and converted just before the clock starts, as an agent's are made just before it
keeps them; every peer on files of its own, on one disk, in one process, taking turns block by block
in a hot loop. CPU is that of all threads of the process. A ratio is the median over rounds of the
peer's time in units of ours: above one we are cheaper.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, get_args

from hybridagi_steps.memory import Durability
from hybridagi_steps.records.agent_step import AgentStep
from tests.benchmarks.corpus import STEPS_PER_RUN, payload, real_steps
from tests.benchmarks.peers import (
    NOT_INSTALLED,
    OURS,
    SAVERS,
    WRITERS,
    Peer,
    StepRecord,
    StepWriter,
    chosen,
    folder_bytes,
)
from tests.benchmarks.sync_calls import syncs_per_append
from tests.benchmarks.tables import Table, number
from tests.benchmarks.timing import Sample, Samples, in_turns, interleaved, ratio, typical

BATCH = 1_000
ROUNDS = 10
"""Turns that the peers take at appending, the first of them not counted."""
GRAPH = "LangGraph with nothing saved"
_DIMENSION = 256
_RUNS_READ = 50


def measure_peers(
    folder: Path, *, appends: int, batches: int, loops: Sequence[int], peers: str
) -> dict[str, Any]:
    """Return what each peer takes: append at both durabilities, batch, read, agent loops."""
    writers, savers = chosen(WRITERS, peers), chosen(SAVERS, peers)
    if savers and GRAPH not in [peer.name for peer in savers]:
        savers += [peer for peer in SAVERS if peer.name == GRAPH]
    steps = real_steps(appends)
    return {
        "versions": {peer.name: peer.version() for peer in (*writers, *savers)},
        "steps_bytes": sum(len(payload(step.inputs, step.outputs)) for step in steps) / appends,
        "append": {
            durability: _appends(folder, writers, durability, max(1, appends // ROUNDS))
            for durability in get_args(Durability)
        },
        "batch": _batches(folder, writers, batches),
        "read_run": _reads(folder, writers),
        "loops": {
            durability: {
                str(size): _loops(folder, [*writers, *savers], durability, size, batches // 2)
                for size in loops
            }
            for durability in get_args(Durability)
        },
    }


def record_of(step: AgentStep) -> StepRecord:
    """Return a step in every form a peer may want; its vector is made up."""
    values = step.model_dump(mode="json", exclude_none=True)
    place = step.hop % _DIMENSION
    vector = [1.0 if n == place else 0.01 for n in range(_DIMENSION)]
    text = step.model_dump_json(exclude_none=True)
    return StepRecord(step, str(step.id), str(step.run_id), values, text, vector)


def _records(count: int, *, first: int = 0, run_id: str | None = None) -> list[StepRecord]:
    return [record_of(step) for step in real_steps(count, first=first, run_id=run_id)]


class _NewFiles(AbstractContextManager["_NewFiles"]):
    """Peers on files that are new in each turn, with one step in them and the next ones at hand."""

    open: Any
    """The `StepWriter`, or for a saver `StepLoop`, whose turn it is."""
    records: Sequence[StepRecord]

    def __init__(
        self, folder: Path, peers: Sequence[Peer], durability: Durability, steps: int
    ) -> None:
        loaded = {peer.name: peer.load() for peer in peers}
        self._adapters = {name: found for name, found in loaded.items() if found is not None}
        self._folder, self._durability, self._steps = folder, durability, steps
        self._turn = ExitStack()
        self.sizes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """Who is installed."""
        return list(self._adapters)

    def renew(self, name: str) -> None:
        """Close what was open, and open new files of this peer."""
        self._turn.close()
        place = Path(self._turn.enter_context(tempfile.TemporaryDirectory(dir=self._folder)))
        self.open = self._adapters[name](place, self._durability)
        self._turn.callback(lambda: self.sizes.update({name: folder_bytes(place)}))
        self._turn.callback(self.open.close)
        first, *self.records = _records(self._steps + 1, run_id="one run")
        self.open.add_each([first])

    def __exit__(self, *_: object) -> None:
        self._turn.close()


@contextmanager
def _opened(
    folder: Path, peers: Sequence[Peer], durability: Durability
) -> Generator[dict[str, Any]]:
    """Open the installed peers, each in a new folder."""
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for peer in peers:
            adapter = peer.load()
            if adapter is None:
                continue
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
            found[peer.name] = adapter(place, durability)
            stack.callback(found[peer.name].close)
        yield found


def _appends(
    folder: Path, peers: Sequence[Peer], durability: Durability, block: int
) -> dict[str, Any]:
    """Return what one durable append takes, and how often the disk is asked to sync for it."""
    with _opened(folder, peers, durability) as opened:
        samples = in_turns(
            {name: writer.add_each for name, writer in opened.items()},
            lambda turn: _records(block, first=turn * block, run_id="one run"),
            ROUNDS - 1,
        )
        settings = {name: writer.settings for name, writer in opened.items()}
    found = _compared(peers, samples, per=block)
    for name, words in settings.items():
        calls = syncs_per_append(name, durability)
        found[name] |= {"settings": words, "syncs_per_append": calls}
    return found


def _batches(folder: Path, peers: Sequence[Peer], rounds: int) -> dict[str, Any]:
    """Return what one step of a batch of 1,000 takes; a batch is one commit into a new file."""
    with _NewFiles(folder, peers, "full", BATCH) as files:
        rivals = dict.fromkeys(files.names, lambda: files.open.add_all(files.records))
        samples = interleaved(rivals, rounds, before=files.renew)
    return _compared(peers, samples, per=BATCH)


def _reads(folder: Path, peers: Sequence[Peer]) -> dict[str, Any]:
    """Return what reading a run of 20 takes per step, of 50 runs, after what each peer advises."""
    records = _records(_RUNS_READ * STEPS_PER_RUN)
    with _opened(folder, peers, "full") as opened:
        for writer in opened.values():
            writer.add_all(records)
            writer.settle()
        rivals = {name: _next_read(writer) for name, writer in opened.items()}
        samples = interleaved(rivals, _RUNS_READ - 3, warm_up=3)
    return _compared(peers, samples, per=STEPS_PER_RUN)


def _next_read(writer: StepWriter) -> Callable[[], None]:
    runs = iter(range(_RUNS_READ))

    def read() -> None:
        found = writer.read_run(f"run-{next(runs)}")
        assert found == STEPS_PER_RUN

    return read


def _loops(
    folder: Path, peers: Sequence[Peer], durability: Durability, size: int, rounds: int
) -> dict[str, Any]:
    """Return what an agent's loop of so many steps takes, and the bytes it leaves on disk.

    Savers run inside a graph: what the graph takes by itself is not counted against them.
    """
    with _NewFiles(folder, peers, durability, size) as files:
        rivals = dict.fromkeys(files.names, lambda: files.open.add_each(files.records))
        samples = interleaved(rivals, max(2, rounds), before=files.renew)
    sizes = files.sizes
    savers = {peer.name for peer in SAVERS} - {GRAPH}
    net = {
        name: _without(found, samples[GRAPH]) if name in savers else found
        for name, found in samples.items()
    }
    compared = _compared(peers, net, per=1)
    for name, found in samples.items():
        compared[name] |= {
            "with_graph_cpu_us": typical(found, "cpu"),
            "bytes": sizes[name],
            "bytes_ratio": sizes[name] / sizes[OURS],
        }
    return compared


def _without(more: Sequence[Sample], less: Sequence[Sample]) -> list[Sample]:
    return [Sample(a.cpu - b.cpu, a.wall - b.wall) for a, b in zip(more, less, strict=True)]


def _compared(peers: Sequence[Peer], samples: Samples, *, per: int) -> dict[str, Any]:
    """Return each peer's times per step and what they are in units of ours."""
    found: dict[str, Any] = {}
    for peer in peers:
        if peer.name not in samples:
            found[peer.name] = {"missing": NOT_INSTALLED}
            continue
        theirs = samples[peer.name]
        found[peer.name] = {
            "cpu_us": typical(theirs, "cpu", per=per),
            "wall_us": typical(theirs, "wall", per=per),
            "cpu_ratio": ratio(theirs, samples[OURS], "cpu"),
            "wall_ratio": ratio(theirs, samples[OURS], "wall"),
        }
    return found


def peer_tables(found: dict[str, Any]) -> list[Table]:
    """Return the tables of what `measure_peers` found."""
    parts: dict[str, dict[str, Any]] = {
        f"append, {name}": part for name, part in found["append"].items()
    }
    parts |= {f"batch of {BATCH:,}": found["batch"], "read a run": found["read_run"]}
    rows = [
        [what, name, *_times(row)] for what, part in parts.items() for name, row in part.items()
    ]
    loops = [
        [f"{size} steps, {durability}", name, *_loop_times(row)]
        for durability, sizes in found["loops"].items()
        for size, part in sizes.items()
        for name, row in part.items()
    ]
    known: dict[str, None] = dict.fromkeys(found["versions"].values())
    versions = ", ".join(filter(None, known))
    return [
        Table(
            f"keeping real steps ({found['steps_bytes']:.0f} bytes on average), µs per step",
            ["", "", "CPU", "wall", "CPU x ours", "wall x ours", "fsyncs"],
            rows,
            [
                "hot loop, interleaved; fsyncs: calls per append that strace saw",
                *_settings(found["append"]),
                versions,
            ],
        ),
        Table(
            "an agent's loop, each step on disk before the next",
            ["", "", "CPU ms", "wall ms", "CPU x ours", "KiB", "KiB x ours", "CPU ms, graph too"],
            loops,
        ),
    ]


def _settings(appends: dict[str, Any]) -> list[str]:
    """Return one line per peer: what it does for durability, said once where it never differs."""
    found: dict[str, dict[str, str]] = {}
    for durability, part in appends.items():
        for name, row in part.items():
            if "settings" in row:
                found.setdefault(name, {})[row["settings"]] = durability
    return [
        f"{name}: " + "; ".join(f"{words} ({when})" for words, when in ways.items())
        if len(ways) > 1
        else f"{name}: {next(iter(ways))}"
        for name, ways in found.items()
    ]


def _times(row: dict[str, Any]) -> list[str]:
    if "missing" in row:
        return [str(row["missing"]), *[""] * 4]
    times = [number(row[key], 1) for key in ("cpu_us", "wall_us")]
    ratios = [number(row[key], 2) for key in ("cpu_ratio", "wall_ratio")]
    calls = number(row["syncs_per_append"], 1) if "syncs_per_append" in row else ""
    return [*times, *ratios, calls]


def _loop_times(row: dict[str, Any]) -> list[str]:
    if "missing" in row:
        return [str(row["missing"]), *[""] * 5]
    times = [number(row[key] / 1e3, 1) for key in ("cpu_us", "wall_us")]
    sizes = [number(row["bytes"] / 1024, 0), number(row["bytes_ratio"], 1)]
    graph_too = number(row["with_graph_cpu_us"] / 1e3, 1)
    return [*times, number(row["cpu_ratio"], 1), *sizes, graph_too]
