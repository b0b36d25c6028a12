"""Durable runs: a worker is killed at every kind of moment, another one ends what it had begun."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from provider_double import check_openai
from runner_cases import SyncAgent, collected, kinds, messages, thought

from hybridagi_steps import (
    AgentSession,
    RunHook,
    StepMemory,
    StepRunner,
    StepRunnerConfig,
    ToolRequest,
)
from hybridagi_steps.durable.session_runs import DurableRunner, turn_of
from hybridagi_steps.errors import (
    InvalidSettingError,
    InvalidStepError,
    MessageError,
    MissingExtraError,
    NotAllowedError,
    SequenceConflictError,
    StepTooLargeError,
    StorageError,
    UnknownRunError,
)
from hybridagi_steps.records.run import RunResult
from hybridagi_steps.running.tool_calls import idempotent
from hybridagi_steps.testing import ScriptedLM, request_text

pytest.importorskip("dbos", reason="needs the extra `durable`")

MOMENTS = ("asking", "in_tool", "in_idempotent_tool", "between", "answered", "consenting")
"""Where a worker is killed; also the names of sessions and the questions asked in them."""


class Program:
    """What both workers run: it stops where its question says while the file `hold` is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def here(self, place: str) -> None:
        """Note that this place was reached, and stay while told to."""
        with (self.folder / "log").open("a") as log:
            log.write(f"{place}\n")
        while (self.folder / "hold").exists():
            time.sleep(0.01)

    def count(self, place: str) -> int:
        """How often a place was reached."""
        log = self.folder / "log"
        return log.read_text().splitlines().count(place) if log.exists() else 0

    def reply(self, request: Any) -> Any:
        """Ask for one tool, then answer."""
        text = request_text(request)
        if "next_tool_name" not in text:
            return {"reasoning": "r", "answer": "Paris"}
        done = text.count("observation_") + sum(m.role == "tool" for m in request.messages[-2:])
        if "endless" in text:
            return thought("on", "write", place="endless")
        for moment in ("asking", "between"):
            if moment in text and bool(done) == (moment == "between"):
                self.here(moment)
        tool = "read" if "in_idempotent_tool" in text else "write"
        place = next((m for m in MOMENTS[1:3] if m in text), "elsewhere")
        return thought("enough", "finish") if done else thought("on", tool, place=place)

    def runner(self, memory: StepMemory) -> StepRunner:
        """Return the runner of a worker."""

        def write(place: str) -> str:
            """Change the world."""
            if place == "in_tool":
                self.here(place)
            else:
                time.sleep(0.02)
            return "written"

        @idempotent
        def read(place: str) -> str:
            """Look at the world."""
            self.here(place)
            return "read"

        here = self.here

        class Ends(RunHook):
            async def on_run_end(self, run: Any, status: Any, data: Any) -> None:
                if run.session_id == "answered":
                    await asyncio.to_thread(here, "answered")

        async def consent(request: ToolRequest) -> bool:
            if request.session_id == "consenting":
                await asyncio.to_thread(here, "consenting")
            return True

        agent = SyncAgent([write, read])
        agent.react.max_iters = 1000
        agent.set_lm(ScriptedLM(self.reply))
        config = StepRunnerConfig(consent=consent)
        return StepRunner(agent, memory, hooks=[Ends()], config=config)


def work(folder: str) -> None:
    """Be a worker until killed."""
    with StepMemory(f"{folder}/steps.db", embedder="hashing") as memory:
        DurableRunner(Program(Path(folder)).runner(memory), poll_seconds=0.05).run_worker()


def made(memory: StepMemory) -> StepRunner:
    """Return the runner of a worker that the command line starts."""
    return Program(Path(memory.address).parent).runner(memory)


@contextmanager
def ordered_worker(folder: Path) -> Generator[None]:
    """Run a worker from the command line; at the end ask it to stop."""
    words = [
        "worker",
        "--db",
        str(folder / "steps.db"),
        "--program",
        "durable.test_durable_runs:made",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "hybridagi_steps", *words], cwd=Path(__file__).parents[1]
    )
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def worker(folder: Path) -> Generator[None]:
    """Run a worker process, and kill it at the end."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=(str(folder),))
    process.start()
    try:
        yield
    finally:
        assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


class Done(NamedTuple):
    """What two workers made of the runs."""

    memory: StepMemory
    durable: DurableRunner
    program: Program
    runs: dict[str, str]
    results: dict[str, RunResult]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Generator[Done]:
    """Kill one worker in the middle of seven runs; let another one end them, and one more."""
    folder = tmp_path_factory.mktemp("durable")
    program = Program(folder)
    (folder / "hold").touch()
    with (
        StepMemory(folder / "steps.db", embedder="hashing") as memory,
        DurableRunner(memory=memory, poll_seconds=0.02) as durable,
    ):
        runs = asyncio.run(begun(durable, program, folder))
        (folder / "hold").unlink()
        with ordered_worker(folder):
            results = asyncio.run(ended(durable, runs))
        yield Done(memory, durable, program, runs, results)


async def begun(durable: DurableRunner, program: Program, folder: Path) -> dict[str, str]:
    """Hand out runs and kill their worker when each has come to its moment."""
    runs = {moment: await durable.submit(moment, moment) for moment in MOMENTS}
    runs["waiting"] = await durable.submit("asking", "the next question")
    runs["unwanted"] = await durable.submit("unwanted", "between")
    runs["never"] = await durable.submit("unwanted", "never asked")
    with worker(folder):
        wait_for(lambda: all(program.count(m) >= 1 + (m == "between") for m in MOMENTS))
        wait_for(lambda: bool(durable.memory.find({"scope": "consent"}).steps))
        assert await durable.cancel(runs["never"])
    # Its worker is dead: whoever takes it up must see that nobody wants it any more.
    assert await durable.cancel(runs["unwanted"])
    return runs


async def ended(durable: DurableRunner, runs: dict[str, str]) -> dict[str, RunResult]:
    """Wait for the ends; stop one run that has none."""
    runs["endless"] = await durable.submit("endless", "endless")
    results = {name: await durable.result(runs[name]) for name in runs if name != "endless"}
    async for event in durable.events(runs["endless"]):
        if event.number == 4:
            assert await durable.cancel(runs["endless"])
    results["endless"] = await durable.result(runs["endless"])
    return results


def tools_run(done: Done, moment: str) -> list[Any]:
    """What a session's tool calls were answered."""
    return [step.content for step in messages(done.memory, moment) if step.is_tool_step()]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_is_ended_by_another_worker_and_each_message_stored_once(
    done: Done, moment: str
) -> None:
    line = messages(done.memory, moment)[: 8 if moment == "asking" else None]
    assert done.results[moment].status == "completed"
    assert done.results[moment].text == "Paris"
    assert [step.sequence for step in line] == list(range(1, len(line) + 1))
    assert line[0].id == done.runs[moment]
    assert sum(step.content == moment for step in line) == 1
    asked = [call["id"] for step in line for call in step.tool_calls or []]
    assert [step.tool_call_id for step in line if step.is_tool_step()] == asked
    assert len(set(asked)) == len(asked) > 0
    check_openai([step.to_message_dict() for step in line])


def test_a_tool_in_flight_runs_again_only_if_it_is_idempotent(done: Done) -> None:
    assert done.program.count("in_idempotent_tool") == 2
    assert tools_run(done, "in_idempotent_tool") == ["read"]
    assert done.program.count("in_tool") == 1
    assert "interrupted" in tools_run(done, "in_tool")[0]


def test_a_tool_that_waited_for_consent_is_asked_about_again_and_runs_once(done: Done) -> None:
    assert done.program.count("consenting") == 2
    assert tools_run(done, "consenting") == ["written"]


def test_what_was_stored_is_not_done_again(done: Done) -> None:
    assert tools_run(done, "between") == ["written"]
    assert done.program.count("answered") == 1
    assert done.results["answered"].data["last_sequence"] == len(messages(done.memory, "answered"))


def test_runs_of_one_session_follow_each_other(done: Done) -> None:
    asked = [step.content for step in messages(done.memory, "asking") if step.is_user_step()]
    assert asked == ["asking", "the next question"]
    assert done.results["waiting"].text == "Paris"


def test_a_run_is_cancelled_from_another_process_wherever_it_stands(done: Done) -> None:
    assert {done.results[name].status for name in ("unwanted", "never", "endless")} == {"cancelled"}
    assert "never asked" not in [step.content for step in messages(done.memory, "unwanted")]
    check_openai([step.to_message_dict() for step in messages(done.memory, "endless")])
    assert not asyncio.run(done.durable.cancel(done.runs["endless"]))


def test_events_are_the_same_whenever_they_are_read(done: Done) -> None:
    async def events(after: int = 0) -> list[Any]:
        return [event async for event in done.durable.events(done.runs["between"], after=after)]

    told = asyncio.run(events())
    assert kinds(told) == ["run_started", *["step_completed"] * (len(told) - 2), "run_completed"]
    assert [event.number for event in told] == list(range(1, len(told) + 1))
    assert [e.snapshot for e in told[1:-1]] == messages(done.memory, "between")
    assert [event.number for event in asyncio.run(events(after=3))] == list(range(4, len(told) + 1))


def test_a_key_hands_out_one_run(done: Done) -> None:
    async def twice(message: str) -> tuple[str, str]:
        first = await done.durable.submit("keyed", "Hello", idempotency_key="k")
        return first, await done.durable.submit("keyed", message, idempotency_key="k")

    first, second = asyncio.run(twice("Hello"))
    assert first == second
    with pytest.raises(SequenceConflictError, match="another message"):
        asyncio.run(twice("Good bye"))


def test_a_run_of_any_length_is_found_in_its_session() -> None:
    def said(role: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": role, **more}

    with StepMemory(":memory:", embedder="hashing") as memory:
        repo = memory.repository()
        before = [said("user"), said("assistant")]
        turn = [said("user", id="run"), *[said("assistant") for _ in range(1100)]]
        asyncio.run(repo.append("s", [*before, *turn]))
        assert [step.sequence for step in turn_of(memory, "s", "run")] == [*range(3, 1104)]
        asyncio.run(repo.append("s", before))
        assert len(turn_of(memory, "s", "run")) == 1101
        assert len(turn_of(memory, "s", "run", last=5)) == 3
        asyncio.run(repo.append("other", before * 3))
        for session_id, run_id in (("s", "never"), ("other", "run"), ("nowhere", "run")):
            assert turn_of(memory, session_id, run_id) == []


def test_what_cannot_be_handed_out_is_refused(done: Done) -> None:
    with pytest.raises(UnknownRunError):
        asyncio.run(done.durable.result("no such run"))
    with pytest.raises(InvalidSettingError, match="JSON"):
        asyncio.run(done.durable.submit("chat", "Hello", inputs={"made": object()}))
    with StepMemory(":memory:", embedder="hashing") as memory:
        with pytest.raises(InvalidSettingError, match="in a file"):
            DurableRunner(memory=memory)
        queue = "postgresql://ann:secret@127.0.0.1:1/runs"
        with pytest.raises(StorageError, match="cannot be used as a queue of runs") as refused:
            DurableRunner(memory=done.memory, database=queue)
        assert "secret" not in str(refused.value)
        with pytest.raises(InvalidSettingError, match="another one"):
            DurableRunner(done.program.runner(memory), done.memory)


@pytest.mark.parametrize(
    ("session", "message", "more", "error"),
    [
        ("s", "", {}, MessageError),
        ("s", None, {}, MessageError),
        ("s", 5, {}, MessageError),
        ("", "Hello", {}, InvalidStepError),
        ("y" * 200, "Hello", {}, InvalidStepError),
        (5, "Hello", {}, InvalidSettingError),
        ("s", "x" * (9 << 20), {}, StepTooLargeError),
        ("s", "Hello", {"idempotency_key": ""}, InvalidStepError),
        ("s", "Hello", {"inputs": 5}, InvalidSettingError),
    ],
)
def test_what_can_never_run_is_not_queued(
    done: Done, session: Any, message: Any, more: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        asyncio.run(done.durable.submit(session, message, **more))


def test_a_run_in_anothers_session_is_refused_when_handed_out(tmp_path: Path) -> None:
    async def echo(messages: list[dict[str, Any]]) -> str:
        return f"said {messages[-1]['content']}"

    async def handed_out(durable: DurableRunner) -> str:
        await durable.memory.repository(user_id="ann").append("anns", said("user", "mine"))
        await durable.memory.repository(user_id="ann").append("anns", said("assistant", "yes"))
        first = await durable.submit(AgentSession("new", "ann"), "go", idempotency_key="k")
        for key in (None, "k", "unused"):
            with pytest.raises(NotAllowedError):
                await durable.submit(AgentSession("anns", "bob"), "me too", idempotency_key=key)
        # A key is its user's: that Ann has used it is not told.
        assert await durable.submit(AgentSession("new", "bob"), "x", idempotency_key="k") != first
        assert await durable.submit(AgentSession("new", "ann"), "go", idempotency_key="k") == first
        return await durable.submit(AgentSession("anns", "bob", as_any_user=True), "shared")

    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(StepRunner(echo, memory), poll_seconds=0.02) as durable,
    ):
        run_id, stop = asyncio.run(handed_out(durable)), threading.Event()
        worker = threading.Thread(target=partial(durable.run_worker, stop))
        worker.start()
        try:
            result = asyncio.run(durable.result(run_id))
        finally:
            stop.set()
            worker.join()
        assert result.status == "completed"
        spoken = memory.repository().store.messages("anns")
        assert [step.content for step in spoken][-2:] == ["shared", "said shared"]


def said(role: str, content: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": content}


def asks_first(memory: StepMemory, folder: Path, *, die: bool) -> StepRunner:
    """A program whose tool nobody allows; `die`: its process is killed once a run has paused."""

    def write(place: str) -> str:
        """Change the world."""
        with (folder / "written").open("a") as file:
            file.write(place)
        return "written"

    def consent(_: ToolRequest) -> None:
        with (folder / "asked").open("a") as file:
            file.write(".")

    class Dies(RunHook):
        def on_run_end(self, run: Any, status: Any, data: Any) -> None:
            if die and status == "paused":
                os.kill(os.getpid(), signal.SIGKILL)

    agent = SyncAgent([write])
    agent.set_lm(ScriptedLM(Program(folder).reply))
    return StepRunner(agent, memory, hooks=[Dies()], config=StepRunnerConfig(consent=consent))


def work_on_what_asks(folder: str, die: bool) -> None:
    """Be a worker of that program until killed."""
    with StepMemory(f"{folder}/steps.db", embedder="hashing") as memory:
        DurableRunner(asks_first(memory, Path(folder), die=die), poll_seconds=0.05).run_worker()


def test_a_paused_run_is_not_resumed_by_itself(tmp_path: Path) -> None:
    """Also when its worker dies before the queue knows that it has paused."""
    workers = multiprocessing.get_context("spawn")

    async def result(durable: DurableRunner) -> RunResult:
        run_id = await durable.submit("chat", "elsewhere")
        dying = workers.Process(target=work_on_what_asks, args=(str(tmp_path), True))
        dying.start()
        await asyncio.to_thread(dying.join, 60)
        assert dying.exitcode == -signal.SIGKILL
        other = workers.Process(target=work_on_what_asks, args=(str(tmp_path), False))
        other.start()
        try:
            found = await asyncio.wait_for(durable.result(run_id), 60)
            events = [event.type.value async for event in durable.events(run_id)]
        finally:
            os.kill(other.pid or 0, signal.SIGKILL)
            other.join()
        assert events[-1] == "run_paused"
        return found

    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(memory=memory, poll_seconds=0.02) as durable,
    ):
        paused = asyncio.run(result(durable))
        assert (paused.status, (tmp_path / "asked").read_text()) == ("paused", ".")
        [waits] = paused.waiting
        runner = asks_first(memory, tmp_path, die=False)
        answers = {waits["call_id"]: True}
        events = asyncio.run(collected(runner.resume("chat", answers=answers)))
        assert kinds(events)[-1] == "run_completed"
        assert (tmp_path / "written").read_text() == "elsewhere"


def test_a_process_is_one_worker(done: Done) -> None:
    from hybridagi_steps.durable.engine import only_engine

    with DurableRunner(done.program.runner(done.memory)) as durable:
        with only_engine(), pytest.raises(InvalidSettingError, match="a worker already"):
            durable.run_worker()
        stop = threading.Event()
        stop.set()
        assert durable.run_worker(stop, grace_seconds=0)


def test_a_run_that_was_cancelled_while_it_waited_is_erased_with_the_rest(tmp_path: Path) -> None:
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
    ):
        unwanted = asyncio.run(durable.submit("s", "a secret"))
        assert asyncio.run(durable.cancel(unwanted))
        assert memory.purge({"session_id": "s"}).unreached == ()
    assert b"a secret" not in (tmp_path / "steps.db.runs").read_bytes()


def test_a_worker_ends_though_its_queue_is_locked(tmp_path: Path) -> None:
    """DBOS tries without end what a locked database refuses; a worker told to stop ends anyway."""
    queue = tmp_path / "runs.db"
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(Program(tmp_path).runner(memory), database=queue) as durable,
    ):
        stop = threading.Event()
        worker = threading.Thread(
            target=durable.run_worker, args=(stop,), kwargs={"grace_seconds": 0}, daemon=True
        )
        worker.start()
        wait_for(lambda: any(t.name.endswith("recovery") for t in threading.enumerate()))
        with closing(sqlite3.connect(queue, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(1)  # until the worker's next looks have met the lock
            stop.set()
            worker.join(60)
            assert not worker.is_alive()


def test_a_file_that_is_no_queue_is_refused(done: Done, tmp_path: Path) -> None:
    text = tmp_path / "a text"
    text.write_text("no database" * 1000)
    for database in (text, tmp_path, tmp_path / "no folder" / "runs"):
        with pytest.raises(StorageError, match="cannot be used as a queue"):
            DurableRunner(memory=done.memory, database=database)
    assert text.read_text() == "no database" * 1000


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("engine", "session_runs"):
        monkeypatch.delitem(sys.modules, f"hybridagi_steps.durable.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "dbos", None)
    with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[durable\]"):
        import_module("hybridagi_steps.durable.session_runs").DurableRunner()
