"""The peers are measured doing the job: what they were given is there, found, and comparable."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import numpy as np
import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.testing import scripted_lm
from tests.benchmarks import (
    comparison,
    lexical,
    recorder,
    search_peers,
    spans,
    sync_calls,
    tables,
    turns,
    write_peers,
)
from tests.benchmarks import peers as neighbours
from tests.benchmarks.corpus import real_steps
from tests.benchmarks.peers import (
    NOT_INSTALLED,
    OURS,
    SAVERS,
    SEARCHERS,
    TALKERS,
    TRACERS,
    WORDS,
    WRITERS,
    Peer,
    answered,
    check_names,
    chosen,
)
from tests.benchmarks.peers.memory_index import MemoryIndex, RowsKnown

RECORDS = [write_peers.record_of(step) for step in real_steps(40)]


def named(peer: Peer) -> str:
    return peer.name


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that opens a peer's adapter, or skips where it is not installed."""

    def opening(peer: Peer, *arguments: Any) -> Any:
        adapter = peer.load()
        if adapter is None:
            pytest.skip(f'{peer.packages} not installed (pip install ".[bench]")')
        return adapter(tmp_path, *arguments)

    return opening


class TestWriters:
    @pytest.mark.parametrize("durability", ["normal", "full"])
    @pytest.mark.parametrize("peer", WRITERS, ids=named)
    def test_what_was_added_is_read_back(
        self, peer: Peer, durability: str, opened: Callable[..., Any], tmp_path: Path
    ) -> None:
        writer = opened(peer, durability)
        writer.add_all(RECORDS[:20])
        writer.add_each(RECORDS[20:])
        writer.settle()
        assert writer.read_run("run-0") == 20
        assert writer.read_run("run-1") == 20
        assert writer.read_run("no run") == 0
        writer.close()
        assert neighbours.folder_bytes(tmp_path) > sum(len(r.values["inputs"]) for r in RECORDS)

    @pytest.mark.parametrize(
        "peer",
        [peer for peer in WRITERS if "sqlite" in peer.name.lower() and "doc" not in peer.name],
        ids=named,
    )
    @pytest.mark.parametrize("durability", ["normal", "full"])
    def test_a_sqlite_peer_says_the_setting_it_was_given(
        self, peer: Peer, durability: str, opened: Callable[..., Any]
    ) -> None:
        writer = opened(peer, durability)
        assert writer.settings == f"WAL, synchronous={durability.upper()}"
        writer.close()

    @pytest.mark.parametrize(
        "peer",
        [peer for peer in (*WRITERS, *SAVERS) if "as documented" in peer.name],
        ids=named,
    )
    def test_as_documented_is_synced_whatever_ours_is(
        self, peer: Peer, opened: Callable[..., Any]
    ) -> None:
        keeper = opened(peer, "normal")
        assert "synchronous=FULL" in keeper.settings
        keeper.close()

    @pytest.mark.parametrize("peer", SAVERS[:-1], ids=named)
    def test_a_saver_keeps_every_step_of_the_loop(
        self, peer: Peer, opened: Callable[..., Any]
    ) -> None:
        loop = opened(peer, "full")
        loop.add_each(RECORDS[:7])
        kept = list(loop.checkpoints())
        assert max(kept) == 7
        assert len(kept) >= 7
        loop.close()


USERS = [f"user-{row % 10}" for row in range(300)]


def unit_vectors(count: int) -> Any:
    made = np.random.default_rng(3).normal(size=(count, 16)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


class TestSearchers:
    @pytest.mark.parametrize("peer", SEARCHERS, ids=named)
    def test_the_nearest_are_found_of_everybody_and_of_one_user(
        self, peer: Peer, opened: Callable[..., Any]
    ) -> None:
        vectors, searcher = unit_vectors(300), opened(peer)
        searcher.add(np.arange(200), vectors[:200], USERS[:200])
        searcher.settle()
        exact = np.argsort(-(vectors[:200] @ vectors[5]))
        assert list(searcher.search(vectors[5], 5))[:3] == exact[:3].tolist()
        of_user = [row for row in exact.tolist() if row % 10 == 7]
        assert list(searcher.search_of(vectors[5], 5, "user-7"))[:3] == of_user[:3]
        searcher.add(np.arange(200, 300), vectors[200:], USERS[200:])
        assert next(iter(searcher.search(vectors[299], 5))) == 299
        assert searcher.settings
        searcher.close()

    def test_known_rows_give_what_the_filter_gives(self, tmp_path: Path) -> None:
        vectors, searcher = unit_vectors(300), MemoryIndex(tmp_path)
        searcher.add(np.arange(300), vectors, USERS)
        searcher.settle()
        known = RowsKnown(searcher, "user-4")
        assert known.search(vectors[9], 5) == searcher.search_of(vectors[9], 5, "user-4")
        searcher.close()

    def test_a_table_has_speed_recall_and_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(search_peers, "ADDS", 20)
        corpus = search_peers.Corpus(unit_vectors(400), (USERS * 2)[:400], unit_vectors(9))
        ours = [peer for peer in SEARCHERS if peer.name in (OURS, search_peers.NUMPY)]
        part = search_peers.measure_size(corpus, 300, 2, [*ours, fake("Nobody")])
        found = part["peers"]
        assert found["Nobody"] == {"missing": NOT_INSTALLED}
        assert found[OURS]["everything"]["recall"] == 1.0
        assert found[OURS]["settings"].startswith("exact scan")
        assert found[search_peers.NUMPY]["everything"]["times_faster_than_numpy"] == 1.0
        assert found[search_peers.KNOWN]["filtered"]["wall_ms"] > 0
        assert found[OURS]["filtered_in_turn"]["recall"] == 1.0
        shown = search_peers.peer_tables({"versions": {}, "sizes": {"300": part}})
        measured = {name: [row for row in shown[0].rows if row[1] == name] for name in found}
        assert {name: len(rows) for name, rows in measured.items()} == {
            OURS: 4,
            search_peers.NUMPY: 4,
            "Nobody": 4,
            search_peers.KNOWN: 1,
        }
        assert all(len(row) == len(shown[0].columns) for row in shown[0].rows)

    def test_vectors_are_made_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(search_peers, "ADDS", 10)
        path = search_peers.corpus_file(tmp_path, 50, "hashing:32")
        written = path.stat().st_mtime_ns
        assert np.load(path).shape == (100 + 50 + 5 * 10, 32)
        assert search_peers.corpus_file(tmp_path, 50, "hashing:32") == path
        assert path.stat().st_mtime_ns == written


class TestWords:
    @pytest.mark.parametrize("peer", WORDS, ids=named)
    def test_files_give_what_was_put_into_them(
        self, peer: Peer, opened: Callable[..., Any]
    ) -> None:
        words = [["refund"] * n + ["flight", f"seat{n}"] for n in range(1, 40)]
        searcher = opened(peer)
        searcher.add([(row, found) for row, found in enumerate(words, start=1)])
        for asked in (searcher, opened(peer)):  # the second finds the files of the first
            assert asked.search(["seat7", "seat9"], 5) in ([7, 9], [9, 7])
            assert len(asked.search(["refund", "seat7"], 5)) == 5
            assert asked.search(["nothing"], 5) == []
            assert asked.settings
            asked.close()

    def test_who_is_missing_is_a_row_that_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = Peer(lexical.TANTIVY, ("no-such-package",), "no_such_module:Nothing")
        monkeypatch.setattr(lexical, "WORDS", (*WORDS[:2], missing))
        found = lexical.measure(sizes="60", rounds=2)["steps"]
        assert found["60"][lexical.TANTIVY] == {"missing": NOT_INSTALLED}
        shown = [row for row in lexical.tables(found)[0].rows if NOT_INSTALLED in row]
        assert len(shown) == 7


class TestTalkers:
    @pytest.mark.parametrize("peer", TALKERS, ids=named)
    def test_a_turn_sends_what_was_said_before(
        self, peer: Peer, opened: Callable[..., Any]
    ) -> None:
        talker = opened(peer)
        talker.begin("a", ["Hello", "Hello to you"])
        talker.begin("b", ["Hi", "Hi to you", "Well", "Well"])
        assert talker.turn("a", "And now?") == answered(3)
        assert talker.turn("b", "And now?") == answered(5)
        assert talker.turn("a", "And now?") == answered(5)
        assert talker.settings.startswith("WAL, synchronous=NORMAL")
        talker.close()

    def test_each_length_is_measured_and_who_is_missing_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turns, "TALKERS", (TALKERS[0], fake("Nobody")))
        found = turns.measure(lengths="2,6", rounds=2)
        for row in found["turns"].values():
            assert row["Nobody"] == {"missing": NOT_INSTALLED}
            assert row[OURS]["cpu_ratio"] == 1.0
        assert [len(table.rows) for table in turns.tables(found)] == [4, 5]


@pytest.mark.filterwarnings("ignore")  # MLflow's database layer warns of its own future
class TestTracers:
    def test_autolog_has_written_every_span_when_the_call_returns(
        self, opened: Callable[..., Any]
    ) -> None:
        before = dict(dspy.settings.config)
        tracing = opened(TRACERS[0])
        for calls in (1, 2):
            with dspy.context(lm=scripted_lm(), **tracing.dspy_settings()):
                dspy.Predict("question -> answer")(question="May I?")
            assert tracing.spans() >= 4 * calls - 1
        tracing.close()
        assert dict(dspy.settings.config)["callbacks"] == before["callbacks"]

    def test_a_missing_tracer_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorder, "TRACERS", (fake("Nobody"),))
        found = recorder.measure(rounds=2, runs=1)
        assert found["peers"]["Nobody"] == {"missing": NOT_INSTALLED}

    def test_a_tracer_is_measured_over_a_callback_that_does_nothing(self) -> None:
        if TRACERS[0].load() is None:
            pytest.skip("mlflow is not installed")
        found = recorder.measure(rounds=10, runs=1)["peers"][TRACERS[0].name]
        assert found["spans_per_run"] == 10
        assert found["theirs_us"]["cpu"] > 0


@pytest.mark.filterwarnings("ignore")  # MLflow's database layer warns of its own future
class TestSpans:
    def test_every_span_of_autolog_stands_somewhere(self) -> None:
        found = spans.measure()
        if "missing" in found:
            pytest.skip(found["missing"])
        assert found["nowhere"] == []
        assert all(found["spans"].values())

    def test_a_span_without_a_step_is_nowhere(self) -> None:
        def span(name: str, outputs: object) -> SimpleNamespace:
            status = SimpleNamespace(status_code=SimpleNamespace(value="OK"))
            about = {"span_id": name, "parent_id": None, "status": status}
            return SimpleNamespace(name=name, inputs={}, outputs=outputs, **about)

        with hs.StepMemory(":memory:", embedder="hashing") as memory:
            with hs.record(memory):
                dspy.Tool(spans.look_up)(city="Oslo")
            kept = spans.Kept(memory)
        traced = [span("Tool.look_up", "Oslo: rain"), span("Tool.look_up", "Oslo: rain")]
        others = [span("Tool.look_up", "Oslo: snow"), span("Predict.forward", {"code": "1"})]
        assert list(kept.places([*traced, *others, span("LM.__call__", ["hello"])])) == [
            (spans.TOOL, True),
            (spans.TOOL, False),
            (spans.TOOL, False),
            (spans.CODE, False),
            (spans.PREDICTOR, False),
            (spans.DIRECT, False),
        ]

    def test_a_missing_tracer_is_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(spans, "TRACERS", (fake("Nobody"),))
        spans.report()
        assert f"MLflow {NOT_INSTALLED}" in capsys.readouterr().out

    def test_the_merges_are_documented(self) -> None:
        page = Path(__file__).parents[2] / ".github/docs/recording.md"
        told = page.read_text(encoding="utf-8")
        assert [
            kind for kind, here in spans.MERGES.items() if f"| {kind} | {here} |" not in told
        ] == []


def untraced(_peer: str, _durability: str) -> None:
    """Trace nothing."""


def fake(name: str) -> Peer:
    return Peer(name, ("no-such-package",), "no_such_module:Nothing")


class TestTables:
    def test_who_is_missing_is_a_row_that_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(write_peers, "WRITERS", (WRITERS[0], fake("Nobody")))
        monkeypatch.setattr(write_peers, "SAVERS", (fake(write_peers.GRAPH),))
        monkeypatch.setattr(write_peers, "syncs_per_append", untraced)
        found = write_peers.measure_peers(tmp_path, appends=20, batches=1, loops=[5], peers="all")
        for part in (*found["append"].values(), found["batch"], found["read_run"]):
            assert part["Nobody"] == {"missing": NOT_INSTALLED}
            assert part[OURS]["cpu_ratio"] == 1.0
        assert found["loops"]["normal"]["5"][OURS]["bytes"] > 5 * 100
        shown = [row for table in write_peers.peer_tables(found) for row in table.rows]
        assert sum(NOT_INSTALLED in row for row in shown) == 4 + 2 * 2

    def test_peers_are_chosen_by_name_and_we_are_always_there(self) -> None:
        assert [peer.name for peer in chosen(WRITERS, "chroma, LanceDB")] == [
            OURS,
            "LanceDB",
            "Chroma",
        ]
        assert [peer.name for peer in chosen(WRITERS, "none")] == [OURS]
        assert chosen(WRITERS, "all") == list(WRITERS)
        assert len(chosen(WRITERS, "openai")) == 3

    def test_a_name_that_nobody_has_is_refused(self) -> None:
        check_names("all")
        check_names("none")
        check_names("chroma, mlflow")
        for names in ("chroma,faiss", "", "chroma,"):
            with pytest.raises(InvalidSettingError, match="Qdrant Edge"):
                check_names(names)

    def test_a_narrow_screen_cuts_no_word(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        rows = [["append", OURS, "1.0"], ["append", "LangGraph SqliteStore", "22,333.4"]]
        table = tables.Table("a table", ["", "", "CPU x ours"], rows)
        tables.print_tables([table], {"versions": {}, "machine": "here", "measured_at": "now"})
        shown = capsys.readouterr().out
        assert all(word in shown for row in rows for cell in row for word in cell.split())
        assert shown.count("append") == 1

    def test_every_name_can_be_asked_for(self) -> None:
        known = (*WRITERS, *SAVERS, *SEARCHERS, *WORDS, *TALKERS, *TRACERS)
        for peer in known:
            assert peer.name in [found.name for found in chosen(known, peer.name.upper())]

    def test_a_broken_adapter_is_an_error_not_a_missing_package(self) -> None:
        with pytest.raises(AttributeError):
            Peer("us", ("hybridagi-steps",), "memory_writer:Nobody").load()


class TestSyncCalls:
    def test_calls_between_the_marks_count(self) -> None:
        mark = f'7 access("/{sync_calls.MARK}", F_OK) = -1 ENOENT\n'
        inside = "7 fsync(3) = 0\n8 fdatasync(4 <unfinished ...>\n8 <... fdatasync resumed>) = 0\n"
        assert sync_calls.count_syncs(f"7 fsync(1) = 0\n{mark}{inside}{mark}7 fsync(9) = 0\n") == 2
        assert sync_calls.count_syncs("7 fsync(1) = 0\n") == 0

    def test_our_full_durability_syncs_each_append_and_normal_does_not(self) -> None:
        full = sync_calls.syncs_per_append(OURS, "full")
        if full is None:
            pytest.skip("strace is not here, or may not trace")
        assert full >= 1
        assert sync_calls.syncs_per_append(OURS, "normal") == 0


def results(cpu_ratio: float, *, filtered_ms: float = 1.0) -> dict[str, Any]:
    """Return what a run of the measurements that measured very little would return."""
    row = {"wall_ms": filtered_ms, "recall": 1.0, "wall_ratio": 1.0}
    return {
        "recorder": {"peers": {TRACERS[0].name: {"normal": {"cpu_ratio": cpu_ratio}}}},
        "search": {
            "peers": {
                "sizes": {
                    "10000": {
                        "peers": {
                            OURS: {"everything": {"times_faster_than_numpy": 3, "recall": 0.98}}
                        }
                    },
                    "100000": {
                        "peers": {
                            OURS: {"filtered": {**row, "wall_ms": 1.0}},
                            "NumPy exact": {"filtered": {**row, "wall_ms": 0.001}},
                            "Fast": {"filtered": row},
                            "Wrong": {"filtered": {**row, "wall_ms": 0.01, "recall": 0.9}},
                        }
                    },
                }
            }
        },
    }


class TestMargins:
    @staticmethod
    def row(found: dict[str, Any], words: str) -> list[str]:
        lines = comparison.margins(found).splitlines()
        line = next(line for line in lines if words in line)
        return [cell.strip() for cell in line.strip("|").split("|")][1:]

    def test_a_margin_is_reached_missed_or_not_measured(self) -> None:
        assert self.row(results(81.0), "MLflow") == ["≥ 80x", "81x", "yes"]
        assert self.row(results(79.0), "MLflow") == ["≥ 80x", "79x", "**no**"]
        assert self.row({}, "MLflow") == ["≥ 80x", "not measured", "-"]

    def test_speed_without_recall_misses(self) -> None:
        cells = self.row(results(1), "10,000, one query")
        assert cells == ["≥ 2.5x, recall ≥ 0.99", "3.0x, recall 0.980", "**no**"]

    def test_the_filter_is_compared_with_the_fastest_peer_that_finds_everything(self) -> None:
        words = "fastest peer with recall 1"
        assert self.row(results(1, filtered_ms=2.5), words)[1:] == ["2.5x", "yes"]
        assert self.row(results(1, filtered_ms=0.5), words)[1:] == ["0.5x", "**no**"]

    def test_nothing_that_was_to_be_reached_is_left_out(self) -> None:
        assert len(comparison.margins({}).splitlines()) == len(comparison.MARGINS) + 2
