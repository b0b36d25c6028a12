"""Calls that wait outlive their process: they are listed, answered, and run once."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import dspy
import pytest
from provider_double import check_openai
from runner_cases import collected, messages, thought

from hybridagi_steps import AgentSession, ConsentRules, StepMemory, StepRunner, StepRunnerConfig
from hybridagi_steps.errors import (
    InvalidSettingError,
    NotAllowedError,
    SequenceConflictError,
    UnknownSessionError,
)
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.message import MessageRole, Step, new_id
from hybridagi_steps.running import stored_consents
from hybridagi_steps.running.limits import ToolRequest
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.testing import ScriptedLM, request_text

QA = "question -> answer"
PATIENCE_SECONDS = 60


def model(*, new_turns: bool = False) -> ScriptedLM:
    """A model that looks, then pays, as far as it is not shown to have done so.

    With `new_turns` what earlier turns of the session did does not count.
    """

    def reply(request: Any) -> Any:
        text = request_text(request)
        if "next_tool_name" not in text:
            return {"reasoning": "r", "answer": "done"}
        done = text.count("## observation_")
        if not new_turns:
            done += sum(message.role == "tool" for message in request.messages)
        if done < 2:
            return thought("on", ("look", "pay")[done], what="the bill")
        return thought("enough", "finish")

    return ScriptedLM(reply)


def runner(
    memory: StepMemory,
    folder: Path,
    consent: Any = None,
    *,
    die: bool = False,
    always: bool = False,
) -> StepRunner:
    """An agent whose tools leave a line in a file each time they run; `die`: paying kills.

    Without a consent of its own somebody is asked about paying, or `always`.
    """

    def ran(tool: str, what: str) -> str:
        with (folder / "ran.txt").open("a", encoding="utf-8") as file:
            file.write(f"{tool}\n")
        return f"{tool}ed {what}"

    def look(what: str) -> str:
        """Look at something."""
        return ran("look", what)

    def pay(what: str) -> str:
        """Pay something."""
        paid = ran("pay", what)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        return paid

    def when_paying(request: ToolRequest) -> bool | None:
        return None if always or request.tool == "pay" else True

    config = StepRunnerConfig(consent=consent or when_paying)
    return StepRunner(dspy.ReAct(QA, tools=[look, pay]), memory, config=config)


def ran(folder: Path) -> list[str]:
    return (folder / "ran.txt").read_text(encoding="utf-8").split()


async def slow_consent(request: ToolRequest) -> bool:
    """Ask somebody who is away."""
    if request.tool == "pay":
        await asyncio.Event().wait()
    return True


def wait_for_consent(folder: str, session: AgentSession, consent: Any) -> None:
    """What a process does that pauses, or is killed while somebody is asked."""
    path = Path(folder)
    with StepMemory(path / "steps.db", embedder="hashing") as memory, dspy.context(lm=model()):
        asyncio.run(runner(memory, path, consent).run(session, "Pay my bill."))


@pytest.fixture(scope="module", params=[None, slow_consent], ids=["nobody asked", "somebody asked"])
def folder_of_killed(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """The folder of a run that was killed while it waited for consent, to be copied."""
    folder = tmp_path_factory.mktemp("killed")
    args = (str(folder), AgentSession("chat", "ann"), request.param)
    child = multiprocessing.get_context("spawn").Process(target=wait_for_consent, args=args)
    child.start()
    with StepMemory(folder / "steps.db", embedder="hashing") as memory:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not memory.find({"scope": "consent"}).steps:
            assert time.monotonic() < give_up
            assert child.is_alive()
            time.sleep(0.02)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    return folder


@pytest.fixture
def killed(folder_of_killed: Path, tmp_path: Path) -> Path:
    """The folder of a run that was killed while it waited for consent."""
    return shutil.copytree(folder_of_killed, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize("allowed", [True, False])
def test_what_waited_for_consent_runs_once_when_it_is_given(killed: Path, allowed: bool) -> None:
    async def taken_up(memory: StepMemory) -> None:
        agent = runner(memory, killed)
        [waits] = await agent.pending("chat")
        assert (waits.tool, waits.waits_for) == ("pay", "consent")
        assert waits.arguments == {"what": "the bill"}
        with pytest.raises(NotAllowedError):
            await agent.pending(AgentSession("chat", "bob"))
        with dspy.context(lm=model() if allowed else answering_at_once()):
            await collected(agent.resume("chat", answers={waits.call_id: allowed}))
        assert await agent.pending("chat") == []

    with StepMemory(killed / "steps.db", embedder="hashing") as memory:
        asyncio.run(taken_up(memory))
        assert ran(killed) == ["look", "pay"][: 1 + allowed]
        line = messages(memory, "chat")
        assert line[-1].content == "done"
        check_openai([step.to_message_dict() for step in line])
        assert memory.verify() == []
        assert memory.find().steps
        assert all(step.scope != "consent" for step in memory.find().steps)
        memory.purge({"session_id": "chat"})
        assert memory.find({"scope": "consent"}).steps == []


def answering_at_once() -> ScriptedLM:
    def reply(request: Any) -> Any:
        asked = "next_tool_name" in request_text(request)
        return thought("no", "finish") if asked else {"reasoning": "r", "answer": "done"}

    return ScriptedLM(reply)


def test_a_result_may_be_told_instead(killed: Path) -> None:
    """As a person's answer, or what was found out of a tool that was in flight."""

    async def taken_up(memory: StepMemory) -> None:
        agent = runner(memory, killed)
        [waits] = await agent.pending("chat")
        with dspy.context(lm=model()):
            told = {waits.call_id: "payed by cheque"}
            await collected(agent.resume("chat", answers=told))

    with StepMemory(killed / "steps.db", embedder="hashing") as memory:
        asyncio.run(taken_up(memory))
        assert ran(killed) == ["look"]
        [told] = [s for s in messages(memory, "chat") if s.content == "payed by cheque"]
        [step] = memory.get([str(told.agent_step_id)]).steps
        assert (step.tool, step.status, step.user_id) == ("pay", "ok", "ann")


def test_an_answer_that_nothing_waits_for_is_refused(killed: Path) -> None:
    async def refused(memory: StepMemory) -> None:
        agent = runner(memory, killed)
        for answer in (True, "x"):
            with pytest.raises(InvalidSettingError, match="no answer; those that do: call_"):
                await collected(agent.resume("chat", answers={"other": answer}))
        assert len(await agent.pending("chat")) == 1

    with StepMemory(killed / "steps.db", embedder="hashing") as memory:
        asyncio.run(refused(memory))
        assert ran(killed) == ["look"]


def test_an_answer_of_the_wrong_kind_is_refused(killed: Path) -> None:
    """A number is no consent, and neither is nothing."""

    async def refused(memory: StepMemory) -> None:
        agent = runner(memory, killed)
        [waits] = await agent.pending("chat")
        wrong: list[Any] = [1, 0, None, b"x", 5]
        for answer in wrong:
            with pytest.raises(InvalidSettingError, match="not "):
                await collected(agent.resume("chat", answers={waits.call_id: answer}))
        assert await agent.pending("chat") == [waits]

    with StepMemory(killed / "steps.db", embedder="hashing") as memory:
        asyncio.run(refused(memory))
        assert ran(killed) == ["look"]


def test_nothing_is_pending_where_nothing_waits(memory: StepMemory, tmp_path: Path) -> None:
    agent = runner(memory, tmp_path)
    with pytest.raises(UnknownSessionError):
        asyncio.run(agent.pending("nowhere"))
    with dspy.context(lm=answering_at_once()):
        asyncio.run(agent.run("chat", "Hello"))
    assert asyncio.run(agent.pending("chat")) == []


class TestRules:
    def run(self, memory: StepMemory, folder: Path, session: Any) -> list[str]:
        """Return which tools ran in one turn; what no rule says is denied."""
        (folder / "ran.txt").write_text("", encoding="utf-8")
        rules = ConsentRules(memory, otherwise=lambda request: request.tool == "look")
        with dspy.context(lm=model(new_turns=True)):
            asyncio.run(runner(memory, folder, rules).run(session, "Pay."))
        return sorted(set(ran(folder)))

    def test_hold_for_their_session_or_user_until_revoked(
        self, memory: StepMemory, tmp_path: Path
    ) -> None:
        rules, ann = ConsentRules(memory), AgentSession("one", "ann")
        assert self.run(memory, tmp_path, ann) == ["look"]
        rule = rules.add("pay", session_id="one")
        assert self.run(memory, tmp_path, ann) == ["look", "pay"]
        assert self.run(memory, tmp_path, AgentSession("two", "ann")) == ["look"]
        assert rules.list(session_id="one") == [rule]
        assert rules.revoke(rule.id)
        assert not rules.revoke(rule.id)
        mine = rules.add("pay", user_id="ann")
        assert self.run(memory, tmp_path, AgentSession("three", "ann")) == ["look", "pay"]
        assert self.run(memory, tmp_path, AgentSession("four", "bob")) == ["look"]
        rules.add("pay", allowed=False, session_id="three", user_id="ann")
        assert self.run(memory, tmp_path, AgentSession("three", "ann")) == ["look"]
        assert rules.list(user_id="bob") == []
        memory.purge({"user_id": "ann"})
        assert rules.list() == []
        assert mine.allowed

    def test_of_somebody_elses_file_do_not_count(self, memory: StepMemory, tmp_path: Path) -> None:
        with StepMemory(tmp_path / "theirs.db", embedder="hashing") as theirs:
            ConsentRules(theirs).add("pay", user_id="ann")
            export_file(theirs, tmp_path / "theirs.jsonl", where={"scope": "*"})
        import_file(memory, tmp_path / "theirs.jsonl")
        assert len(memory.find({"scope": "consent_rule"}).steps) == 1
        assert ConsentRules(memory).list(user_id="ann") == []
        assert self.run(memory, tmp_path, AgentSession("one", "ann")) == ["look"]

    def test_name_a_tool_and_whose_they_are(self, memory: StepMemory) -> None:
        rules = ConsentRules(memory)
        with pytest.raises(InvalidSettingError, match="session_id"):
            rules.add("pay")
        with pytest.raises(InvalidSettingError, match="a tool"):
            rules.add("", user_id="ann")

    def test_revoking_deletes_nothing_else(self, memory: StepMemory, tmp_path: Path) -> None:
        self.run(memory, tmp_path, "chat")
        [*steps] = memory.iter_steps()
        assert not any(ConsentRules(memory).revoke(str(step.id)) for step in steps)
        assert len([*memory.iter_steps()]) == len(steps)


def resume_until_the_kill(folder: str, mode: str) -> None:
    """What a process does that is killed inside the tool that a resume has allowed."""
    path = Path(folder)
    with StepMemory(path / "steps.db", embedder="hashing") as memory, dspy.context(lm=model()):
        consent = ConsentRules(memory) if mode == "rule" else None
        agent = runner(memory, path, consent, die=True)
        if mode == "rule":
            ConsentRules(memory).add("pay", user_id="ann")
        [waits] = asyncio.run(agent.pending("chat"))
        answers = {waits.call_id: True} if mode == "answer" else {}
        asyncio.run(collected(agent.resume("chat", answers=answers)))


@pytest.mark.parametrize("mode", ["answer", "rule"])
def test_what_was_allowed_does_not_run_again_after_another_kill(killed: Path, mode: str) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=resume_until_the_kill, args=(str(killed), mode)
    )
    child.start()
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == -signal.SIGKILL
    assert ran(killed) == ["look", "pay"]
    with StepMemory(killed / "steps.db", embedder="hashing") as memory:
        agent = runner(memory, killed)
        [waits] = asyncio.run(agent.pending("chat"))
        assert waits.waits_for == "result"
        with dspy.context(lm=answering_at_once()):
            asyncio.run(collected(agent.resume("chat")))
    assert ran(killed) == ["look", "pay"]


def test_of_two_that_take_up_a_turn_one_runs_the_tool(killed: Path) -> None:
    """Two processes, each with a memory of its own, have both read that the call waits."""
    path = killed / "steps.db"

    async def taken_up(*memories: StepMemory) -> list[str]:
        together = asyncio.Barrier(len(memories))

        class Together:
            async def on_tool_start(self, _: Any, request: ToolRequest) -> None:
                await together.wait()

        async def resume(memory: StepMemory) -> str:
            agent = runner(memory, killed)
            agent.hooks = (Together(),)
            [waits] = await agent.pending("chat")
            events = await collected(agent.resume("chat", answers={waits.call_id: True}))
            return f"{events[-1].type.value} {events[-1].data}"

        with dspy.context(lm=model()):
            return await asyncio.gather(*map(resume, memories))

    with (
        StepMemory(path, embedder="hashing") as one,
        StepMemory(path, embedder="hashing") as two,
    ):
        ends = asyncio.run(taken_up(one, two))
        assert ran(killed) == ["look", "pay"]
        assert sorted("SequenceConflictError" in end for end in ends) == [False, True]
        line = messages(one, "chat")
        assert [step.content for step in line[-2:]] == ["payed the bill", "done"]
        check_openai([step.to_message_dict() for step in line])
        assert one.verify() == []


def test_what_somebody_has_told_meanwhile_is_not_run(killed: Path) -> None:
    """One tells the result, while another process has read that the call waits, and allows it."""
    path = killed / "steps.db"

    async def taken_up(telling: StepMemory, allowing: StepMemory) -> list[str]:
        [waits] = await runner(telling, killed).pending("chat")

        class Told:
            async def on_tool_start(self, _: Any, request: ToolRequest) -> None:
                told = {waits.call_id: "payed by cheque"}
                await collected(runner(telling, killed).resume("chat", answers=told))

        agent = runner(allowing, killed)
        agent.hooks = (Told(),)
        with dspy.context(lm=model()):
            events = await collected(agent.resume("chat", answers={waits.call_id: True}))
        return [str(events[-1].data), *ran(killed)]

    with (
        StepMemory(path, embedder="hashing") as one,
        StepMemory(path, embedder="hashing") as two,
    ):
        end, *tools = asyncio.run(taken_up(one, two))
        assert tools == ["look"]
        assert "SequenceConflictError" in end
        line = messages(one, "chat")
        assert [step.content for step in line[-2:]] == ["payed by cheque", "done"]
        assert one.verify() == []


@pytest.mark.parametrize("answered", [True, False])
def test_a_result_may_be_told_again_after_a_kill_between(killed: Path, answered: bool) -> None:
    """The question is settled before the result is stored; a kill there leaves a call to tell."""
    with StepMemory(killed / "steps.db", embedder="hashing") as memory, dspy.context(lm=model()):
        agent = runner(memory, killed)
        [waits] = asyncio.run(agent.pending("chat"))
        [question] = stored_consents.questions(memory, "chat").values()
        if not answered:  # as of a call that never waited for consent
            memory.delete(str(question.id))
        request = ToolRequest("run", "chat", waits.call_id, "pay", waits.arguments, "ann")
        call = UUID(str((question.metadata or {})["call_step_id"]))
        line = SessionWriter(memory, "chat")
        line.find_end()
        stored_consents.settle(line, request, call, question if answered else None)
        [left] = asyncio.run(agent.pending("chat"))
        assert left.waits_for == "result"
        asyncio.run(collected(agent.resume("chat", answers={waits.call_id: "payed by cheque"})))
        assert "payed by cheque" in [step.content for step in messages(memory, "chat")]
        assert ran(killed) == ["look"]


class Till:
    """A callable that asks for some tools under one id, and the tools that it has."""

    def __init__(self, memory: StepMemory, *calls: str, answer: bool | None = None) -> None:
        self.ran: list[str] = []
        self._calls = [
            {"id": "call_0", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for name in calls
        ]

        def search() -> str:
            """Search."""
            self.ran.append("search")
            return "found"

        def pay() -> str:
            """Pay."""
            self.ran.append("pay")
            return "paid"

        def consent(_: ToolRequest) -> bool | None:
            return answer

        config = StepRunnerConfig(consent=consent, consent_timeout_seconds=5)
        self.runner = StepRunner(self._program, memory, tools=[search, pay], config=config)

    def _program(self, said: list[dict[str, Any]]) -> Any:
        asked = said[-1]["role"] == "user"
        return (
            {"role": "assistant", "content": None, "tool_calls": self._calls} if asked else "done"
        )


def test_an_answer_speaks_for_one_call_of_those_with_one_id(memory: StepMemory) -> None:
    till = Till(memory, "search", "pay")

    async def answered() -> None:
        paused = await till.runner.run("chat", "Search, and pay.")
        said = {call["call_id"]: call["tool"] == "search" for call in paused.waiting}
        assert len(said) == 2
        await collected(till.runner.resume("chat", answers=said))

    asyncio.run(answered())
    assert till.ran == ["search"]
    check_openai([step.to_message_dict() for step in messages(memory, "chat")])


ERASING: list[Callable[[StepMemory], object]] = [
    lambda memory: memory.purge({"session_id": "chat"}),
    lambda memory: memory.purge({"user_id": "ann"}),
    StepMemory.clear,
]


@pytest.mark.parametrize("erase", ERASING, ids=["session", "user", "all"])
def test_an_answer_after_an_erasure_stores_nothing_and_runs_nothing(
    tmp_path: Path, erase: Callable[[StepMemory], object]
) -> None:
    """What was erased while somebody was asked does not come back with the answer."""

    async def erased() -> str:
        answered, kind = asyncio.Event(), None

        async def consent(request: ToolRequest) -> bool:
            await answered.wait()
            return True

        agent = runner(memory, tmp_path, consent, always=True)
        async for event in agent.run_stream(AgentSession("chat", "ann"), "Look at my bill."):
            kind = event.type.value
            if event.type is StepEventType.TOOL_AUTH_REQUIRED:
                while not memory.find({"scope": "consent"}).steps:
                    await asyncio.sleep(0.01)
                erase(memory)
                answered.set()
        return str(kind)

    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory, dspy.context(lm=model()):
        assert asyncio.run(erased()) == "run_failed"
        assert memory.find({"scope": "*"}).steps == []
        assert not (tmp_path / "ran.txt").exists()


@pytest.mark.parametrize("erase", ERASING, ids=["session", "user", "all"])
def test_a_paused_run_that_is_erased_leaves_nothing_to_answer(
    tmp_path: Path, erase: Callable[[StepMemory], object]
) -> None:
    async def answered() -> None:
        agent = runner(memory, tmp_path, always=True)
        paused = await agent.run(AgentSession("chat", "ann"), "Look at my bill.")
        erase(memory)
        said = {paused.waiting[0]["call_id"]: True}
        with pytest.raises(UnknownSessionError):
            await collected(agent.resume("chat", answers=said))

    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory, dspy.context(lm=model()):
        asyncio.run(answered())
        assert memory.find({"scope": "*"}).steps == []
        assert not (tmp_path / "ran.txt").exists()


def test_a_question_is_not_about_a_later_call_of_the_same_id(memory: StepMemory) -> None:
    """As a kill leaves it: the first call waits, the second one's tool has begun."""
    waits = Till(memory, "pay")
    old = ToolRequest("old", "chat", "call_0", "pay", {})
    line = SessionWriter(memory, "chat")
    line.commit(Step(session_id="chat", role=MessageRole.SYSTEM, content="Pay.", sequence=1))
    stored_consents.ask(line, old, new_id())
    cut_off = Till(memory, "pay", answer=True)

    async def second() -> list[str]:
        seen: list[str] = []

        class Look:
            async def on_tool_start(self, *_: object) -> None:
                seen.extend(call.waits_for for call in await waits.runner.pending("chat"))

        cut_off.runner.hooks = (Look(),)
        await cut_off.runner.run("chat", "Pay.")
        return seen

    assert asyncio.run(second()) == ["result"]


def test_answers_that_nothing_waits_for_are_refused_by_name(
    memory: StepMemory, tmp_path: Path
) -> None:
    agent = runner(memory, tmp_path)

    async def answered(answers: Any) -> list[Any]:
        with dspy.context(lm=model()):
            return await collected(agent.resume("chat", answers=answers))

    with dspy.context(lm=model()):
        assert agent.ask("chat", "Pay my bill.").status == "paused"
    [waits] = asyncio.run(agent.pending("chat"))
    for wrong in ([waits.call_id], "yes", ()):
        with pytest.raises(InvalidSettingError, match="mapping"):
            asyncio.run(answered(wrong))
    asyncio.run(answered({waits.call_id: True}))
    with pytest.raises(SequenceConflictError, match=f"nothing waits .*{waits.call_id}"):
        asyncio.run(answered({waits.call_id: True}))
    assert asyncio.run(answered({})) == []


def test_who_answers_late_hears_that_somebody_else_has(killed: Path) -> None:
    async def taken_up(memory: StepMemory) -> None:
        began, end = asyncio.Event(), asyncio.Event()

        async def pay(what: str) -> str:
            """Pay something."""
            began.set()
            await end.wait()
            return f"payed {what}"

        def look(what: str) -> str:
            """Look at something."""
            return what

        config = StepRunnerConfig(consent=lambda _: None)
        first = StepRunner(dspy.ReAct(QA, tools=[look, pay]), memory, config=config)
        [waits] = await first.pending("chat")
        said = {waits.call_id: True}
        going = asyncio.create_task(collected(first.resume("chat", answers=said)))
        await began.wait()
        with StepMemory(killed / "steps.db", embedder="hashing") as other:
            second = runner(other, killed)
            with pytest.raises(SequenceConflictError, match="somebody else has answered"):
                await collected(second.resume("chat", answers=said))
        end.set()
        await going

    with StepMemory(killed / "steps.db", embedder="hashing") as memory, dspy.context(lm=model()):
        asyncio.run(taken_up(memory))


def test_an_imported_session_waits_for_results_and_a_copy_for_consent(
    memory: StepMemory, tmp_path: Path
) -> None:
    agent, file = runner(memory, tmp_path), tmp_path / "paused.jsonl"
    with dspy.context(lm=model()):
        assert agent.ask("chat", "Pay my bill.").status == "paused"
    [waits] = asyncio.run(agent.pending("chat"))
    assert waits.waits_for == "consent"
    export_file(memory, file, where={"scope": "*"})
    memory.copy_to(tmp_path / "copy.db")
    with StepMemory(tmp_path / "copy.db", embedder="hashing") as copied:
        assert asyncio.run(runner(copied, tmp_path).pending("chat")) == [waits]
    with StepMemory(tmp_path / "new.db", embedder="hashing") as new, dspy.context(lm=model()):
        import_file(new, file)
        theirs = runner(new, tmp_path)
        [open_call] = asyncio.run(theirs.pending("chat"))
        assert (open_call.tool, open_call.waits_for) == ("pay", "result")
        name = open_call.call_id
        with pytest.raises(InvalidSettingError, match=f"its result, a text.*--answer {name}=TEXT"):
            asyncio.run(collected(theirs.resume("chat", answers={name: True})))
        events = asyncio.run(collected(theirs.resume("chat", answers={name: "paid"})))
        assert events[-1].type == StepEventType.RUN_COMPLETED
    assert ran(tmp_path) == ["look"]
