"""Traces that come in parts: whatever the order, the steps end up where one file puts them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import Shelf, unsourced
from exchange_talks import written

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file

ROOT, PLAN, LOOK, BOOK = 1, 2, 3, 4
LINKS = {ROOT: None, PLAN: ROOT, LOOK: PLAN, BOOK: ROOT}


def span(number: int, parent: int | None, trace: str = "a", **said: str) -> dict[str, Any]:
    told = {"gen_ai.conversation.id": "trip"} if number == ROOT else {}
    found = {
        "traceId": trace * 32,
        "spanId": f"{number:016x}",
        "name": f"s{number}",
        "startTimeUnixNano": f"{number}000000",
        "endTimeUnixNano": f"{number}500000",
        "attributes": [
            {"key": key, "value": {"stringValue": text}} for key, text in {**told, **said}.items()
        ],
    }
    return found if parent is None else {**found, "parentSpanId": f"{parent:016x}"}


def part(tmp_path: Path, *numbers: int) -> Path:
    name = "-".join(map(str, numbers))
    spans = [span(number, LINKS[number]) for number in numbers]
    return written(tmp_path, *spans, name=f"{name}.jsonl")


def placed(memory: hs.StepMemory) -> list[tuple[Any, ...]]:
    return sorted(
        (
            step.hop,
            str(step.step_type),
            step.program or step.tool,
            str(step.parent_id),
            step.program_id,
            step.session_id,
            step.run_id,
            str(unsourced(step).metadata),
        )
        for step in memory.iter_steps()
    )


@pytest.fixture(params=[":memory:", "steps.db"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hs.StepMemory]:
    address = request.param if request.param == ":memory:" else tmp_path / request.param
    with hs.StepMemory(address, embedder="hashing", durability="normal") as opened:
        yield opened


@pytest.fixture
def whole(tmp_path: Path) -> list[tuple[Any, ...]]:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        import_file(memory, part(tmp_path, ROOT, PLAN, LOOK, BOOK))
        return placed(memory)


@pytest.mark.parametrize("order", list(permutations((ROOT, PLAN, LOOK, BOOK))))
def test_spans_of_a_trace_in_files_of_their_own_find_their_places(
    memory: hs.StepMemory, tmp_path: Path, order: tuple[int, ...], whole: list[tuple[Any, ...]]
) -> None:
    for number in order:
        report = import_file(memory, part(tmp_path, number))
        assert report.skipped == []
    assert placed(memory) == whole
    assert memory.stats()["dangling_parents"] == 0
    assert memory.verify() == []
    for given in ((PLAN,), (LOOK, ROOT), (ROOT, PLAN, LOOK, BOOK)):
        again = import_file(memory, part(tmp_path, *given))
        assert (again.added, again.skipped, again.notes) == (0, [], ())
        assert placed(memory) == whole


def test_a_whole_file_mends_what_an_older_release_left_apart(
    memory: hs.StepMemory, tmp_path: Path, whole: list[tuple[Any, ...]]
) -> None:
    import_file(memory, part(tmp_path, ROOT, PLAN, LOOK, BOOK))
    apart = [s.model_copy(update={"parent_id": None, "hop": 0}) for s in memory.iter_steps()]
    memory.update([step for step in apart if step.tool])
    report = import_file(memory, part(tmp_path, ROOT, PLAN, LOOK, BOOK))
    assert report.notes == ("steps moved to their places, since their trace grew: 2",)
    assert placed(memory) == whole


def test_a_span_without_its_parent_is_counted(memory: hs.StepMemory, tmp_path: Path) -> None:
    report = import_file(memory, part(tmp_path, LOOK))
    assert "spans whose parent span has not come yet: 1" in report.notes
    assert memory.stats()["dangling_parents"] == 1


def test_a_step_that_moves_keeps_what_was_said_of_it(memory: hs.StepMemory, tmp_path: Path) -> None:
    import_file(memory, part(tmp_path, BOOK))
    [step] = memory.iter_steps()
    memory.update(step.model_copy(update={"score": 0.5, "outputs": {"result": "mine"}}))
    memory.score("a" * 32, 0.25)
    import_file(memory, part(tmp_path, ROOT))
    [found] = memory.get_steps([str(step.id)])
    assert (found.hop, found.score, found.result) == (1, 0.5, "mine")
    memory.update(found.model_copy(update={"score": None}))
    import_file(memory, part(tmp_path, PLAN))
    memory.score("a" * 32, 0.75)
    [found] = memory.get_steps([str(step.id)])
    assert (found.hop, found.score) == (2, 0.75)


def test_parts_of_one_trace_in_one_file_are_placed_one_after_the_other(
    memory: hs.StepMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridagi_steps.exchange.formats.otlp.MAX_HELD_SPANS", 1)
    spans = [span(n, LINKS[n], trace) for n in (LOOK, PLAN, ROOT, BOOK) for trace in "ab"]
    report = import_file(memory, written(tmp_path, *spans))
    assert report.skipped == []
    assert memory.stats()["dangling_parents"] == 0
    assert [step.hop for step in memory.run("b" * 32).steps] == [0, 1, 2, 3, 4, 5]
    assert "spans whose parent span has not come yet" not in str(report.notes)


def test_what_redact_took_out_of_a_stored_span_stays_out(tmp_path: Path) -> None:
    with hs.StepMemory(":memory:", embedder="hashing", redact=lambda t: t.replace("s3", "*")) as m:
        for number in (LOOK, PLAN, ROOT):
            assert import_file(m, part(tmp_path, number)).skipped == []
        assert [step.hop for step in m.run("a" * 32).steps] == [0, 1, 2, 3, 4]
        assert not any("s3" in step.model_dump_json() for step in m.iter_steps())


def test_a_memory_that_cannot_move_steps_still_takes_them(tmp_path: Path) -> None:
    shelf = Shelf()
    import_file(shelf, part(tmp_path, LOOK))
    assert import_file(shelf, part(tmp_path, ROOT)).added == 1
