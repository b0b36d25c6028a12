"""What a user denied for good stays denied; what was allowed holds nowhere else."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import dspy
import pytest
from runner_cases import collected

from hybridagi_steps import (
    AgentSession,
    AgentStep,
    ConsentRules,
    StepMemory,
    StepRunner,
    StepRunnerConfig,
    retry_from_sequence,
)
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.exchange import export_file, import_file, salvage_file
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.running.limits import Consent, ToolRequest
from hybridagi_steps.testing import ScriptedLM, request_text


@pytest.fixture(params=["memory", "file", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    """A memory of each kind of store."""
    address = {"memory": ":memory:", "file": tmp_path / "steps.db"}.get(request.param)
    address = address or request.getfixturevalue("postgres_database")
    with StepMemory(address, embedder="hashing", namespace=uuid4().hex) as opened:
        yield opened


def asked(tool: str, session_id: str, user_id: str | None = None) -> ToolRequest:
    return ToolRequest("run", session_id, "call", tool, {}, user_id)


def said(rules: ConsentRules, *request: str) -> Any:
    return asyncio.run(rules(asked(*request)))


def another_answer(_: object) -> str:
    return "Another answer."


def talk(memory: StepMemory, session_id: str, turns: int = 1) -> None:
    roles = ("user", "assistant")
    pairs = [{"role": role, "content": f"{role} {n}"} for n in range(turns) for role in roles]
    asyncio.run(memory.repository().append(session_id, pairs))


class TestADenialOutlives:
    def test_a_retry_from_before_it(self, shared: StepMemory) -> None:
        talk(shared, "chat")
        rules = ConsentRules(shared)
        rules.add("pay", allowed=False, session_id="chat")

        async def again() -> None:
            runner = StepRunner(another_answer, shared)
            await collected(retry_from_sequence("chat", 1, shared.repository(), runner))

        asyncio.run(again())
        assert said(rules, "pay", "chat") is False
        shared.vacuum()
        assert said(rules, "pay", "chat") is False
        assert shared.verify() == []

    def test_deleting_the_messages_before_it(self, shared: StepMemory) -> None:
        talk(shared, "chat", turns=3)
        rules = ConsentRules(shared)
        rule = rules.add("pay", allowed=False, session_id="chat", user_id="ann")
        asyncio.run(shared.repository().delete_steps("chat", 1))
        assert said(rules, "pay", "chat", "ann") is False
        assert said(rules, "pay", "chat", "bob") is None
        shared.vacuum()
        assert rules.list(session_id="chat") == rules.list(user_id="ann") == [rule]
        assert rules.revoke(rule.id)
        assert said(rules, "pay", "chat", "ann") is None

    def test_the_session_that_a_fork_was_made_from(self, shared: StepMemory) -> None:
        talk(shared, "chat", turns=2)
        rules = ConsentRules(shared)
        rules.add("pay", allowed=False, session_id="chat", user_id="ann")
        asyncio.run(shared.repository().fork("chat", 2, "fork"))
        asyncio.run(shared.repository().fork("fork", 1, "fork of it"))
        rules.add("send", allowed=False, session_id="chat")
        rules.add("pay", allowed=False, session_id="later", user_id="ann")
        asyncio.run(shared.repository().fork("chat", 1, "later"))
        assert said(rules, "send", "later") is False
        [taken] = [rule for rule in rules.list(session_id="later") if rule.tool == "send"]
        assert rules.revoke(taken.id)
        assert said(rules, "send", "later") is None
        assert said(rules, "send", "chat") is False
        shared.purge({"session_id": "chat"})
        for session_id in ("fork", "fork of it"):
            assert said(rules, "pay", session_id, "ann") is False
            assert said(rules, "pay", session_id, "bob") is None
            assert said(rules, "send", session_id, "ann") is None
        assert said(rules, "pay", "chat", "ann") is None
        shared.purge({"user_id": "ann"})
        assert rules.list() == []

    def test_what_takes_steps_out_of_recall(self, shared: StepMemory) -> None:
        talk(shared, "chat")
        rules = ConsentRules(shared)
        rules.add("pay", allowed=False, session_id="chat")
        rules.add("pay", allowed=False, user_id="ann")
        allowed = [rules.add("look", session_id="chat"), rules.add("look", user_id="ann")]
        shared.revoke({"session_id": "chat"})
        shared.revoke({"user_id": "ann"})
        shared.forget({"step_types": ["Decision"]})
        assert said(rules, "pay", "chat") is False
        assert said(rules, "pay", "other", "ann") is False
        assert said(rules, "look", "chat", "ann") is None
        assert [rule.allowed for rule in rules.list()] == [False, False]
        assert not set(allowed) & set(rules.list())

    def test_any_number_of_other_rules(self, memory: StepMemory) -> None:
        rules = ConsentRules(memory)
        for number in range(1_001):
            rules.add("pay", session_id=f"chat {number}", user_id="ann")
        rules.add("pay", allowed=False, user_id="ann")
        assert said(rules, "pay", "chat 7", "ann") is False
        assert len(rules.list(user_id="ann")) == 1_002

    def test_being_said_twice_and_being_contradicted(self, shared: StepMemory) -> None:
        rules = ConsentRules(shared)
        first, again = (rules.add("pay", allowed=False, session_id="chat") for _ in range(2))
        rules.add("pay", session_id="chat")
        assert first == again
        assert said(rules, "pay", "chat") is False
        assert len(rules.list()) == 2


@pytest.mark.parametrize("salvaged", [True, False])
def test_a_file_carries_what_is_denied_and_nothing_that_is_allowed(
    file_memory: StepMemory, memory: StepMemory, tmp_path: Path, salvaged: bool
) -> None:
    talk(file_memory, "chat")
    rules = ConsentRules(file_memory)
    for tool, allowed in (("pay", False), ("look", True)):
        rules.add(tool, allowed=allowed, session_id="chat")
        rules.add(tool, allowed=allowed, user_id="ann")
    if salvaged:
        salvage_file(file_memory, tmp_path / "out.jsonl", damaged=print)
    else:
        export_file(file_memory, tmp_path / "out.jsonl")
    import_file(memory, tmp_path / "out.jsonl")
    there = ConsentRules(memory)
    assert said(there, "pay", "chat") is said(there, "pay", "new", "ann") is False
    assert said(there, "look", "chat", "ann") is said(there, "pay", "other") is None
    assert [rule.tool for rule in there.list()] == ["pay", "pay"]
    asyncio.run(memory.repository().delete_steps("chat", 1))
    assert said(there, "pay", "chat") is False
    assert there.revoke(there.list(user_id="ann")[0].id)
    assert said(there, "pay", "new", "ann") is None


def test_a_client_of_mcp_denies_nobody_anything(memory: StepMemory) -> None:
    rule = ConsentRules(memory).add("pay", allowed=False, user_id="ann")
    [step] = memory.get_steps([rule.id])
    memory.update(step.model_copy(update={"metadata": {"source": {"kind": "mcp"}}}))
    assert said(ConsentRules(memory), "pay", "chat", "ann") is None


def test_what_was_allowed_in_a_line_is_asked_again_on_another(shared: StepMemory) -> None:
    talk(shared, "chat", turns=2)
    rules = ConsentRules(shared)
    rules.add("pay", session_id="chat")
    asyncio.run(shared.repository().fork("chat", 2, "before"))
    talk(shared, "chat")
    asyncio.run(shared.repository().fork("chat", 6, "after"))
    assert said(rules, "pay", "after") is True
    assert said(rules, "pay", "before") is None
    asyncio.run(shared.repository().delete_steps("chat", 3))
    assert said(rules, "pay", "chat") is None
    assert said(rules, "pay", "after") is True


def test_what_redaction_makes_of_a_tools_name_denies_it_all_the_same(tmp_path: Path) -> None:
    with StepMemory(
        tmp_path / "s.db", embedder="hashing", redact=lambda text: text.replace("4711", "…")
    ) as memory:
        talk(memory, "chat")
        rules = ConsentRules(memory)
        rules.add("pay4711", allowed=False, session_id="chat")
        asyncio.run(memory.repository().fork("chat", 2, "fork"))
        assert said(rules, "pay4711", "chat") is said(rules, "pay4711", "fork") is False
        assert said(rules, "pay4712", "fork") is None


def test_a_text_is_no_answer(memory: StepMemory) -> None:
    """As "no" would be true, and allow for good."""
    no: Any = "no"
    with pytest.raises(InvalidSettingError, match="True or False"):
        ConsentRules(memory).add("pay", allowed=no, user_id="ann")
    assert ConsentRules(memory).list() == []


def test_a_denial_of_a_session_without_messages_is_erased_with_it(shared: StepMemory) -> None:
    rules = ConsentRules(shared)
    rules.add("pay", allowed=False, session_id="chat")
    talk(shared, "chat")
    assert said(rules, "pay", "chat") is False
    shared.purge({"session_id": "chat"})
    assert rules.list() == []


def test_a_denial_of_another_user_makes_no_message_his(shared: StepMemory) -> None:
    """Else the words of the only one who spoke would outlive their purge."""
    step = AgentStep.model_validate({"step_type": "Action", "user_id": "ann"})
    line = [{"role": "user", "content": "A secret."}, {"role": "assistant", "content": "Yes."}]
    rules = ConsentRules(shared)
    rules.add("pay", allowed=False, session_id="chat", user_id="bob")
    rules.add("look", session_id="chat", user_id="bob")
    asyncio.run(shared.repository().commit("chat", line, [step]))
    shared.purge({"user_id": "ann"})
    left = asyncio.run(shared.repository().get_steps("chat"))
    assert "secret" not in str(left)
    assert "Yes." not in str(left)
    assert rules.list() == []


def anything(_: ToolRequest) -> bool:
    return True


def agents(memory: StepMemory, outer: Consent | None, inner: Consent | None) -> tuple[Any, ...]:
    """An agent that has another one pay; what was paid; a model for both."""
    paid: list[str] = []

    def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    def reply(request: Any) -> Any:
        text = request_text(request)
        if "next_tool_name" not in text:
            return {"reasoning": "r", "answer": "done"}
        name = "finish" if "## observation_0" in text else "clerk" if "clerk" in text else "pay"
        arguments = {"message": "Buy it."} if name == "clerk" else {}
        return {"next_thought": "t", "next_tool_name": name, "next_tool_args": arguments}

    def made(tools: list[Any], consent: Consent | None) -> StepRunner:
        program = dspy.ReAct("question -> answer", tools=tools, max_iters=2)
        return StepRunner(program, memory, config=StepRunnerConfig(consent=consent))

    clerk = made([pay], inner).as_tool("clerk", "A clerk.")
    return made([clerk], outer), paid, ScriptedLM(reply)


@pytest.mark.parametrize("whose", [{"session_id": "chat"}, {"user_id": "ann"}])
@pytest.mark.parametrize("own_consent", [None, anything])
def test_a_denial_holds_for_agents_used_as_tools(
    memory: StepMemory, whose: dict[str, str], own_consent: Consent | None
) -> None:
    rules = ConsentRules(memory, otherwise=anything)
    runner, paid, lm = agents(memory, rules, own_consent)

    async def ask() -> list[str]:
        paid.clear()
        with dspy.context(lm=lm):
            events = await collected(runner.run_stream(AgentSession("chat", "ann"), "Buy."))
        denied = [each for each in events if each.type is StepEventType.TOOL_AUTH_DENIED]
        return paid + [str((each.data or {})["tool"]) for each in denied]

    assert asyncio.run(ask()) == ["paid"]
    rules.add("pay", allowed=False, **whose)
    assert asyncio.run(ask()) == ["pay"]


def test_what_a_session_allows_its_agents_used_as_tools_are_asked_about(
    memory: StepMemory,
) -> None:
    """The clerk's is another session: nobody has said that it may pay there."""
    rules = ConsentRules(memory, otherwise=lambda request: request.tool == "clerk")
    runner, paid, lm = agents(memory, rules, None)
    rules.add("pay", session_id="chat")
    with dspy.context(lm=lm):
        asyncio.run(runner.run(AgentSession("chat", "ann"), "Buy."))
    assert paid == []
