"""Programs that last: stored beside the steps, found by name and by meaning, some protected."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.program_memory import ProgramMemory
from hybridagi_steps.programs import Action, GraphProgram, Program


def program(name: str, description: str = "", calls: str | None = None) -> GraphProgram:
    """One node: a call, or something said."""
    made = GraphProgram(name, description)
    if calls is None:
        made.add(Action("do", "Speak", f"Do {name}", 'Say "it" {{ query }} // isn\'t }) odd'))
    else:
        made.add(Program("do", f"Do {name}", calls))
    return made.connect("start", "do").connect("do", "end")


@pytest.fixture
def programs() -> Iterator[ProgramMemory]:
    """A main program, what it depends on, and two others."""
    with ProgramMemory(":memory:", embedder="hashing") as opened:
        opened.add(program("main", "Serve the customer", calls="route"))
        opened.add(program("route", "Route the customer", calls="inner"))
        opened.add(program("inner", "The innermost part"))
        opened.add([program("refund", "Refund a cancelled flight"), program("weather", "Forecast")])
        yield opened


class TestPrograms:
    def test_come_back_as_they_were(self, programs: ProgramMemory) -> None:
        assert programs.get("refund") == program("refund", "Refund a cancelled flight")
        assert programs.names() == ["inner", "main", "refund", "route", "weather"]
        assert [each.name for each in programs] == programs.names()
        assert len(programs) == 5
        assert "refund" in programs
        assert "nothing" not in programs

    def test_are_found_by_what_they_are_for(self, programs: ProgramMemory) -> None:
        assert programs.search("refund the flight", k=1)[0].name == "refund"

    def test_that_are_protected_are_not_found(self, programs: ProgramMemory) -> None:
        found = {each.name for each in programs.search("serve route innermost customer", k=5)}
        assert found <= {"refund", "weather"}

    def test_lie_beside_the_steps_and_are_no_experience(self, tmp_path: Path) -> None:
        with (
            hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
            ProgramMemory(memory) as programs,
        ):
            programs.add(program("refund", "Refund a flight"))
            assert memory.search("refund a flight") == []
            assert list(memory.iter_steps()) == []
        with ProgramMemory(tmp_path / "steps.db", embedder="hashing") as again:
            assert again.names() == ["refund"]

    def test_are_seen_when_somebody_else_changes_them(self, tmp_path: Path) -> None:
        address = tmp_path / "steps.db"
        with (
            ProgramMemory(address, embedder="hashing") as ours,
            ProgramMemory(address, embedder="hashing") as theirs,
        ):
            ours.add(program("a", "before"))
            assert ours.get("a").description == "before"
            theirs.update(program("a", "after"))
            assert ours.get("a").description == "after"

    def test_handed_out_are_copies(self, programs: ProgramMemory) -> None:
        programs.get("refund").add(Action("more", "Speak", "More"))
        assert "more" not in programs.get("refund").nodes

    def test_are_not_replaced_by_add(self, programs: ProgramMemory) -> None:
        with pytest.raises(errors.ProgramError, match="update"):
            programs.add([program("new"), program("refund", "another")])
        assert "new" not in programs
        programs.update(program("refund", "another"))
        assert programs.get("refund").description == "another"

    def test_that_are_not_sound_are_refused(self, programs: ProgramMemory) -> None:
        with pytest.raises(errors.InvalidProgramError):
            programs.add([program("new"), GraphProgram("broken")])
        assert "new" not in programs

    def test_can_be_removed(self, programs: ProgramMemory) -> None:
        programs.remove("weather")
        with pytest.raises(errors.UnknownProgramError, match="weather"):
            programs.get("weather")
        with pytest.raises(errors.UnknownProgramError):
            programs.remove("weather")

    def test_that_an_entry_depends_on_stay(self, programs: ProgramMemory) -> None:
        for name in ("route", "inner"):
            with pytest.raises(errors.ProtectedProgramError, match=f"'main' depends on '{name}'"):
                programs.remove(name)
        programs.remove("main")
        programs.remove("inner")
        assert programs.names() == ["refund", "route", "weather"]

    def test_are_all_forgotten_at_once(self, programs: ProgramMemory) -> None:
        programs.clear()
        assert programs.names() == []
        assert programs.search("refund a flight") == []

    def test_know_what_they_depend_on(self, programs: ProgramMemory) -> None:
        assert programs.dependencies("main") == ["route", "inner"]
        programs.update(program("inner", calls="main"))
        assert programs.dependencies("main") == ["route", "inner", "main"]

    def test_that_an_entry_depends_on_are_protected(self, programs: ProgramMemory) -> None:
        protected = [name for name in programs.names() if programs.is_protected(name)]
        assert protected == ["inner", "main", "route"]


class TestCopies:
    def test_share_the_memory(self, programs: ProgramMemory) -> None:
        assert copy.deepcopy(programs) is programs
        assert copy.copy(programs) is programs

    def test_are_reopened_by_pickle(self, tmp_path: Path) -> None:
        with ProgramMemory(tmp_path / "p.db", protected=["a"], embedder="hashing") as programs:
            programs.add(program("a"))
            with pickle.loads(pickle.dumps(programs)) as again:
                assert again.names() == ["a"]
                assert again.is_protected("a")
