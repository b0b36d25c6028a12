"""Titles and metadata of sessions: kept whatever becomes of turns, erased with the session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps import AgentStep, AgentStepType, StepMemory, errors
from hybridagi_steps.cli import main
from hybridagi_steps.records.store_values import details_id
from hybridagi_steps.sessions.session_details import SessionDetails

HELLO = {"role": "user", "content": "Hello"}
TITLE = "A trip to peridot"


@pytest.fixture(params=["memory", "file", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    """A memory of each kind, in which Ann's session has a title and metadata."""
    address: Any = {"memory": ":memory:", "file": tmp_path / "steps.db"}.get(request.param)
    address = address or request.getfixturevalue("postgres_address")
    with StepMemory(address, embedder="hashing") as memory:
        anns = memory.repository(user_id="ann")
        asyncio.run(anns.append("trip", [HELLO, {"role": "assistant", "content": "Hi"}]))
        describe(memory, "trip", title=TITLE, metadata={"pinned": True}, user_id="ann")
        yield memory


def describe(
    memory: StepMemory, session_id: str, *, user_id: str | None = None, **told: Any
) -> SessionDetails:
    repo = memory.repository(user_id=user_id)
    return asyncio.run(hs.describe_session(repo, session_id, **told))


def details(memory: StepMemory, session_id: str = "trip", user_id: str | None = None) -> Any:
    found = asyncio.run(hs.session_details(memory.repository(user_id=user_id), session_id))
    return found.title, found.metadata


def test_what_is_not_named_stays_and_an_empty_title_is_none(kept: StepMemory) -> None:
    assert details(kept) == (TITLE, {"pinned": True})
    assert describe(kept, "trip", metadata={"topic": ["rail"]}).title == TITLE
    assert details(kept) == (TITLE, {"topic": ["rail"]})
    describe(kept, "trip", title="")
    assert details(kept) == (None, {"topic": ["rail"]})
    assert len(list(kept.iter_steps({"scope": "session_details"}))) == 1


def test_they_outlive_a_turn_that_is_made_again_and_swept(kept: StepMemory) -> None:
    asyncio.run(kept.repository().delete_steps("trip", 1))
    kept.vacuum()
    assert details(kept) == (TITLE, {"pinned": True})


def test_a_fork_has_its_own(kept: StepMemory) -> None:
    asyncio.run(kept.repository().fork("trip", 2, "other"))
    assert details(kept, "other") == (None, None)
    describe(kept, "other", title="Another", user_id="ann")
    listed = kept.sessions()
    assert {each.session_id: each.title for each in listed} == {"trip": TITLE, "other": "Another"}


@pytest.mark.parametrize("where", [{"session_id": "trip"}, {"user_id": "ann"}])
def test_they_are_erased_with_session_and_user(
    kept: StepMemory, tmp_path: Path, where: dict[str, str]
) -> None:
    assert kept.purge(where)
    assert not kept.get_steps([details_id("trip")])
    with pytest.raises(errors.UnknownSessionError):
        details(kept)
    assert all(b"peridot" not in path.read_bytes() for path in tmp_path.glob("steps.db*"))


def test_nobody_named_owns_it_and_it_is_erased_all_the_same(kept: StepMemory) -> None:
    asyncio.run(kept.repository().append("nobodys", HELLO))
    describe(kept, "nobodys", title="Open")
    kept.purge({"session_id": "nobodys"})
    asyncio.run(kept.repository().append("nobodys", HELLO))
    assert details(kept, "nobodys") == (None, None)
    assert details(kept) == (TITLE, {"pinned": True})


def test_they_are_the_owners(kept: StepMemory) -> None:
    for session_id in ("trip", "none"):
        with pytest.raises(errors.NotAllowedError):
            details(kept, session_id, "bob")
        with pytest.raises(errors.NotAllowedError):
            describe(kept, session_id, title="Mine", user_id="bob")
    assert details(kept, user_id="ann")[0] == TITLE


def test_a_step_of_another_user_is_no_title(kept: StepMemory) -> None:
    kept.update(
        AgentStep(
            id=details_id("trip"),
            step_type=AgentStepType.Action,
            outputs={"title": "Bob's"},
            user_id="bob",
            scope="session_details",
        )
    )
    assert details(kept) == (None, None)
    listed = kept.sessions()
    assert [each.title for each in listed] == [None]


def test_every_listing_says_them(kept: StepMemory, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(kept.repository().append("untitled", HELLO))
    kept.add(AgentStep(step_type=AgentStepType.Action, session_id="recorded"))
    for listed in (kept.sessions(), asyncio.run(kept.repository().sessions())):
        told = {each.session_id: (each.title, each.metadata) for each in listed}
        expected = dict.fromkeys(("untitled", "recorded"), (None, None))
        assert told == {**expected, "trip": (TITLE, {"pinned": True})}
        assert (TITLE in str(listed), TITLE in listed._repr_html_()) == (True, True)  # pyright: ignore[reportPrivateUsage]
        assert "Hello" in str(listed)
    if Path(kept.address).is_file():
        main(["sessions", "--db", kept.address])
        main(["sessions", "--db", kept.address, "--json"])
        shown, data = capsys.readouterr().out.split("[", 1)
        assert TITLE in shown
        assert json.loads(f"[{data}")[-1]["metadata"] == {"pinned": True}


def test_no_search_finds_them(kept: StepMemory) -> None:
    assert TITLE not in str(kept.search(TITLE))
    assert not kept.find().steps


def test_they_are_redacted() -> None:
    with StepMemory(
        ":memory:", embedder="hashing", redact=lambda text: text.replace("4711", "…")
    ) as memory:
        asyncio.run(memory.repository().append("s", HELLO))
        made = describe(memory, "s", title="Code 4711", metadata={"code": "4711"})
        assert (made.title, made.metadata) == ("Code …", {"code": "…"}) == details(memory, "s")


@pytest.mark.parametrize(
    "told", [{"title": 1}, {"title": "x" * 201}, {"metadata": {"a": object()}}]
)
def test_what_cannot_be_kept_is_refused(kept: StepMemory, told: Any) -> None:
    with pytest.raises(errors.InvalidSettingError):
        describe(kept, "trip", **told)
    assert details(kept) == (TITLE, {"pinned": True})


def test_an_unknown_session_has_none(kept: StepMemory) -> None:
    with pytest.raises(errors.UnknownSessionError):
        describe(kept, "none", title="x")


def test_what_is_wrong_with_a_title_is_said_in_a_line(tmp_path: Path) -> None:
    with hs.StepMemory(tmp_path / "steps.db") as memory:
        wrong: Any = 5
        with pytest.raises(hs.errors.InvalidSettingError, match=r"^title: .*string") as refused:
            asyncio.run(hs.describe_session(memory.repository(), "s", title=wrong))
    assert "\n" not in str(refused.value)
    assert "https://" not in str(refused.value)
