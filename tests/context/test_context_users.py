"""Whose steps a context recalls: those of the user it is for, and never another's."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.context import Context, ContextBuilder
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages import from_messages
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.message import MessageRole, Step

ASKED = "find the door code"
CODES = {"ana": "1111", "bob": "4711", None: "0000"}
"""What the step of each user tells, and that of no user."""


def act(purpose: str, **fields: Any) -> AgentStep:
    return AgentStep(step_type=AgentStepType.Action, inputs={"purpose": purpose}, **fields)


@pytest.fixture
def codes(memory: StepMemory) -> StepMemory:
    """A memory in which two users, and nobody, have looked for a code."""
    memory.add(
        act(ASKED, outputs={"result": f"of {user} {code}"}, user_id=user)
        for user, code in CODES.items()
    )
    return memory


def question() -> list[Step]:
    return from_messages([{"role": "user", "content": ASKED}])


def recalled(context: Context) -> set[str | None]:
    """Return the users whose codes stand in a context."""
    return {user for user, code in CODES.items() if code in str(context.messages)}


class TestARunUnderWay:
    def test_its_user_is_the_one_whose_steps_are_recalled(self, codes: StepMemory) -> None:
        codes.repository().store.commit("new", question())
        builder = ContextBuilder(codes)
        for user in ("ana", "bob"):
            with hs.record(codes, user_id=user):
                assert recalled(builder.build(steps=question())) == {user}
                assert recalled(builder.build(session_id="new")) == {user}

    def test_so_it_is_on_the_first_turn_of_a_session(self, codes: StepMemory) -> None:
        shown: list[set[str | None]] = []

        class Answering(dspy.Module):
            def forward(self, question: str) -> dspy.Prediction:
                shown.append(recalled(ContextBuilder(codes).build(session_id="ana-2")))
                return dspy.Prediction(answer="yes")

        async def two_turns() -> None:
            runner = hs.StepRunner(Answering(), codes)
            for _ in range(2):
                await runner.run(hs.AgentSession("ana-2", "ana"), ASKED)

        asyncio.run(two_turns())
        assert shown == [{"ana"}, {"ana"}]

    def test_a_retriever_and_a_context_agree(self, codes: StepMemory) -> None:
        with hs.record(codes, user_id="ana"):
            found = hs.StepRetriever(codes)(ASKED)
            assert {step.user_id for step in found.steps} == {"ana"}
            assert recalled(ContextBuilder(codes).build(steps=question())) == {"ana"}


class TestWhoseSessionItIs:
    @pytest.mark.parametrize(
        ("users", "whose"),
        [
            (["ana"], "ana"),
            ([None, "ana"], "ana"),
            (["ana", None, "ana"], "ana"),
            ([None], None),
            (["ana", "bob"], None),
        ],
    )
    def test_the_only_user_its_steps_name_counts_as_its_user(
        self, codes: StepMemory, users: list[str | None], whose: str | None
    ) -> None:
        steps = [act(f"step {n}", user_id=user, session_id="s") for n, user in enumerate(users)]
        given = [step.model_copy(update={"inputs": {"purpose": ASKED}}) for step in steps]
        assert recalled(ContextBuilder(codes).build(steps=given)) == {whose}
        codes.add(steps)
        codes.repository().store.commit("s", question())
        assert recalled(ContextBuilder(codes).build(session_id="s")) == {whose}

    @pytest.mark.parametrize(
        ("said_by", "whose"),
        [(["ana"], "ana"), ([None, "ana"], "ana"), (["ana", "bob"], None)],
    )
    def test_whom_its_messages_name_counts_as_well(
        self, codes: StepMemory, said_by: list[str | None], whose: str | None
    ) -> None:
        said = [step.model_copy(update={"user_id": one}) for one in said_by for step in question()]
        assert recalled(ContextBuilder(codes).build(steps=said)) == {None}
        codes.repository().store.commit("s", said)
        assert recalled(ContextBuilder(codes).build(session_id="s")) == {whose}
        codes.add(act("look", user_id="ana", session_id="s"))
        assert recalled(ContextBuilder(codes).build(session_id="s")) == {whose}

    @pytest.mark.parametrize("speakers", [["ana"], ["ana", "bob"]])
    def test_what_a_summary_stands_for_is_recalled_in_its_own_session(
        self, memory: StepMemory, speakers: list[str]
    ) -> None:
        talk = [
            {"role": role, "content": text, "user_id": speakers[n % len(speakers)]}
            for n in range(30)
            for role, text in (
                ("user", f"Please open the {n}th locker."),
                ("assistant", f"Locker {n} has the code {n * 7919}."),
            )
        ]
        repository, builder = memory.repository(), ContextBuilder(memory, budget=2000)
        asyncio.run(repository.append("s", talk))
        summary = builder.compact(session_id="s", summarise=lambda text: "Lockers were opened.")
        asyncio.run(repository.append("s", summary))
        asked = {"role": "user", "content": "Which code has locker 12?", "user_id": "ana"}
        asyncio.run(repository.append("s", asked))
        shown = str(builder.build(session_id="s").messages)
        assert str(12 * 7919) in shown
        assert "another user" not in shown

    @pytest.mark.parametrize(
        ("users", "whose"),
        [
            (["ana"], "ana"),
            ([None, "ana", None], "ana"),
            (["ana", "bob"], None),
            ([None], None),
        ],
    )
    def test_where_no_step_names_one_the_only_user_of_its_messages_does(
        self, codes: StepMemory, users: list[str | None], whose: str | None
    ) -> None:
        said = [
            Step(session_id="s", role=MessageRole.USER, content=ASKED, user_id=user)
            for user in users
        ]
        store = codes.repository().store
        store.commit("s", said[:1])
        ContextBuilder(codes).build(session_id="s")
        store.commit("s", said[1:])
        assert recalled(ContextBuilder(codes).build(session_id="s")) == {whose}
        assert recalled(ContextBuilder(codes).build(steps=said)) == {whose}

    def test_messages_of_another_make_no_session_his(self, codes: StepMemory) -> None:
        said = [Step(session_id="s", role=MessageRole.USER, content=ASKED, user_id="ana")]
        store, builder = codes.repository().store, ContextBuilder(codes)
        store.commit("s", said)
        store.fork("s", 1, "of-bob", user_id="bob")
        assert recalled(builder.build(session_id="of-bob")) == {None}
        assert recalled(builder.build(steps=[said[0].model_copy(update={"session_id": "t"})])) == {
            None
        }
        codes.add(act("step", user_id="bob", session_id="s"))
        assert recalled(builder.build(session_id="s")) == {None}

    def test_nobody_recalls_what_is_nobodys_and_is_told_so(self, codes: StepMemory) -> None:
        context = ContextBuilder(codes).build(steps=question())
        assert recalled(context) == {None}
        (note,) = context.receipt.notes
        assert "not known whose conversation this is" in note

    def test_nobodys_steps_are_found_behind_many_of_users(self, memory: StepMemory) -> None:
        memory.add(act("find some other code", outputs={"result": "0000"}))
        memory.add(
            act(f"{ASKED} {n}", outputs={"result": "x"}, user_id=f"user-{n}") for n in range(60)
        )
        context = ContextBuilder(memory, k=1).build(steps=question())
        assert recalled(context) == {None}

    def test_a_memory_without_users_is_recalled_without_a_word(self, memory: StepMemory) -> None:
        memory.add(act(ASKED, outputs={"result": "0000"}))
        context = ContextBuilder(memory).build(steps=question())
        assert recalled(context) == {None}
        assert context.receipt.notes == []


class TestAFilter:
    def test_one_that_names_no_user_keeps_to_the_user(self, codes: StepMemory) -> None:
        builder = ContextBuilder(codes, where={"status": "ok"})
        with hs.record(codes, user_id="ana"):
            assert recalled(builder.build(steps=question())) == {"ana"}

    def test_one_that_names_a_user_says_whose(self, codes: StepMemory) -> None:
        with hs.record(codes, user_id="ana"):
            others = ContextBuilder(codes, where={"user_id": "bob"})
            assert recalled(others.build(steps=question())) == {"bob"}
            everybodys = ContextBuilder(codes, where={"user_id": None})
            assert recalled(everybodys.build(steps=question())) == {"ana", "bob", None}
