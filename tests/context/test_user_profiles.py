"""What programs are told about their user: in his own sessions, and nobody else of anybody."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from runner_cases import answering, run

import hybridagi_steps as hs
from hybridagi_steps import AgentSession, StepMemory, StepRunner, StepRunnerConfig, errors
from hybridagi_steps.programs.tools import AskUser
from hybridagi_steps.testing import request_text, scripted_lm

ANN, BOB = "Ann books trains, never flights.", "Bob is deaf."
SHOWN = StepRunnerConfig(user_profile=True)


@pytest.fixture(params=["memory", "file", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    """A memory of each kind, in which two users have a profile."""
    address: Any = {"memory": ":memory:", "file": tmp_path / "steps.db"}.get(request.param)
    address = address or request.getfixturevalue("postgres_address")
    with StepMemory(address, embedder="hashing") as memory:
        profiles = hs.UserProfiles(memory)
        profiles.set("ann", ANN)
        profiles.set("bob", BOB)
        yield memory


def asked_with(memory: StepMemory, session: Any, config: StepRunnerConfig = SHOWN) -> str:
    """Return the messages that a program is given in a session."""
    given: list[list[dict[str, Any]]] = []

    def program(messages: list[dict[str, Any]]) -> str:
        given.append(messages)
        return "Yes."

    run(StepRunner(program, memory, config=config), session, "Hello?")
    return str(given)


class TestProfiles:
    def test_are_one_for_each_user(self, kept: StepMemory) -> None:
        profiles = hs.UserProfiles(kept)
        profiles.set("ann", "Ann moved.")
        assert [profiles.get(name) for name in ("ann", "bob", "eve")] == ["Ann moved.", BOB, None]
        assert len(kept.find({"scope": "user_profile", "user_id": "ann"}).steps) == 1
        assert profiles.remove("ann")
        assert not profiles.remove("ann")
        assert (profiles.get("ann"), profiles.get("bob")) == (None, BOB)

    def test_are_found_by_no_search_that_does_not_name_them(self, kept: StepMemory) -> None:
        assert not kept.search("Ann books trains, never flights")
        assert not kept.find().steps

    def test_are_erased_with_their_user(self, kept: StepMemory, tmp_path: Path) -> None:
        asked_with(kept, AgentSession("a", "ann"))
        assert kept.purge({"user_id": "ann"})
        profiles = hs.UserProfiles(kept)
        assert (profiles.get("ann"), profiles.get("bob")) == (None, BOB)
        assert all(b"trains" not in path.read_bytes() for path in tmp_path.glob("steps.db*"))

    def test_outlive_a_session_of_their_user(self, kept: StepMemory) -> None:
        asked_with(kept, AgentSession("a", "ann"))
        kept.purge({"session_id": "a"})
        assert hs.UserProfiles(kept).get("ann") == ANN

    def test_are_hidden_while_their_user_is_revoked(self, kept: StepMemory) -> None:
        revoked = kept.revoke({"user_id": "ann"}, reason="stolen account").id
        assert hs.UserProfiles(kept).get("ann") is None
        assert ANN not in asked_with(kept, AgentSession("a", "ann"))
        assert revoked is not None
        kept.reinstate(revoked)
        assert hs.UserProfiles(kept).get("ann") == ANN

    def test_that_were_imported_are_none(self, memory: StepMemory, kept: StepMemory) -> None:
        source = {"source": {"kind": "file", "name": "theirs.jsonl"}}
        steps = kept.find({"scope": "user_profile"}).steps
        memory.add([step.model_copy(update={"metadata": source}) for step in steps])
        assert hs.UserProfiles(memory).get("ann") is None

    @pytest.mark.parametrize(("user_id", "text"), [("", "x"), (None, "x"), ("ann", " "), ("a", 1)])
    def test_refuse_what_is_none(self, memory: StepMemory, user_id: Any, text: Any) -> None:
        with pytest.raises(errors.InvalidSettingError):
            hs.UserProfiles(memory).set(user_id, text)
        assert not memory.find({"scope": "*"}).steps

    def test_are_redacted(self) -> None:
        with StepMemory(
            ":memory:", embedder="hashing", redact=lambda text: text.replace("4711", "…")
        ) as memory:
            hs.UserProfiles(memory).set("ann", "Her code is 4711.")
            assert hs.UserProfiles(memory).get("ann") == "Her code is …."
            assert "4711" not in asked_with(memory, AgentSession("a", "ann"))


class TestPrompts:
    def test_tell_of_the_sessions_owner_and_of_nobody_else(self, kept: StepMemory) -> None:
        for user, own, others in (("ann", ANN, BOB), ("bob", BOB, ANN)):
            for _turn in range(2):
                shown = asked_with(kept, AgentSession(f"of {user}", user))
                assert own in shown
                assert others not in shown
        assert "About the user" not in asked_with(kept, AgentSession("of eve", "eve"))
        assert "About the user" not in asked_with(kept, "of nobody")

    def test_tell_nothing_in_a_session_that_is_another_users(self, kept: StepMemory) -> None:
        asked_with(kept, AgentSession("shared", "ann"))
        shown = asked_with(kept, AgentSession("shared", "bob", as_any_user=True))
        assert ANN not in shown
        assert BOB not in shown

    def test_tell_nothing_unless_they_shall(self, kept: StepMemory) -> None:
        assert ANN not in asked_with(kept, AgentSession("a", "ann"), StepRunnerConfig())

    def test_of_a_module_hold_it_once_beside_the_sessions_own(self, memory: StepMemory) -> None:
        hs.UserProfiles(memory).set("ann", ANN + "<|im_end|>")
        memory.repository().store.commit(
            "a", hs.from_messages([{"role": "system", "content": "Be brief."}]), user_id="ann"
        )
        runner = StepRunner(dspy.Predict("question -> answer"), memory, config=SHOWN)
        lm = answering("Yes.", "No.")
        for question in ("A train?", "A flight?"):
            run(runner, AgentSession("a", "ann"), question, lm)
        for request in lm.requests:
            text = str(request)
            assert text.count(ANN) == text.count("Be brief.") == 1
            assert "<|im_end|>" not in text
        assert ANN not in str([vars(step) for step in memory.find().steps])


def test_a_model_plays_the_user_of_the_profile() -> None:
    text = """CREATE
    (start:Control {id: "start"}),
    (end:Control {id: "end"}),
    (ask:Action {id: "ask", tool: "AskUser", purpose: "Ask", prompt: "Ask for it"}),
    (start)-[:NEXT]->(ask),
    (ask)-[:NEXT]->(end)"""
    agent = hs.GraphInterpreter(text, tools=[AskUser(persona="Somebody")])
    model = scripted_lm([{"question": "How?"}, {"answer": "By train."}] * 2)
    with dspy.context(lm=model):
        agent(query="Travel", user_profile=ANN)
        agent(query="Travel")
    played = [request_text(request) for request in model.requests[1::2]]
    assert [ANN in text for text in played] == [True, False]
    assert ["Somebody" in text for text in played] == [False, True]
