"""Secrets go in through every entrance of a memory that redacts; none comes out anywhere.

Each test plants secrets and lets the net look at every byte of every file, every log record with
its traceback, every event, export, picture and answer. What is stored as it is by design (ids,
names that calls are matched by) is the list in `AS_GIVEN`, which guarantees.md repeats.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

pytest.importorskip("dbos", reason="queues need the extra `durable`")

from canaries import Canaries, LogNet, redact
from runner_cases import SyncAgent, collected, thought
from server_cases import serving

import hybridagi_steps as hs
from hybridagi_steps import AgentStep, AgentStepType, ProgramMemory, StepMemory
from hybridagi_steps.durable.plan_steps import DurableQueue
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import AddGraphProgram, AskUser, Speak
from hybridagi_steps.testing import ScriptedLM
from hybridagi_steps.workspace.workspace import Workspace

AS_GIVEN = {
    *("step id", "parent_id", "run_id", "session_id", "user_id", "program_id", "scope"),
    *("message id", "message run_id", "tool_call_id", "agent_step_id", "parent_run_id"),
    *("id of a call", "type of a part", "idempotency key", "namespace"),
    *("program name", "node id", "tool of a node", "variable", "edge label"),
}
"""What is stored as it is given, by design: ids, and what tells a part of a message its shape."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Canaries]:
    """Plants and looks; at the end nothing may have leaked."""
    net, logs, root = Canaries(tmp_path), LogNet(), logging.getLogger()
    level = root.level
    root.addHandler(logs)
    root.setLevel(logging.DEBUG)
    for name in ("hybridagi_steps", "dbos", "dspy", "uvicorn", "mcp"):
        logging.getLogger(name).addHandler(logs)
    try:
        yield net
    finally:
        root.setLevel(level)
        for name in ("", "hybridagi_steps", "dbos", "dspy", "uvicorn", "mcp"):
            logging.getLogger(name).removeHandler(logs)
    net.look_at("log", "\n".join(logs.lines))
    assert net.leaks() == {}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[StepMemory]:
    with StepMemory(tmp_path / "steps.db", embedder="hashing", redact=redact) as opened:
        yield opened


def echoed(text: str) -> dict[str, str]:
    """Return a text as key and value."""
    return {text: text}


def look_at_all(net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
    """Look at everything that shows what is stored."""
    memory.search("flush what is pending")
    for form in ("jsonl", "otlp", "openai"):
        path = tmp_path / f"out.{form}.jsonl"
        export_file(memory, path, format=form)
        net.look_at(form, path.read_bytes())
    for run in memory.runs():
        steps = memory.run(run.run_id)
        net.look_at("notebook", steps._repr_html_())
        net.look_at("run", str(run))
        net.look_at("text", str(steps))
        net.look_at("repr", repr(steps))
    for summary in asyncio.run(memory.repository().sessions()):
        net.look_at("session", repr(summary))
        for step in asyncio.run(memory.repository().get_steps(summary.session_id)):
            net.look_at("message", repr(step))
    memory.flush()


class TestSteps:
    def test_added_by_hand(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        plant = net.plant
        error = ValueError(plant("an exception"))
        step = AgentStep.model_validate(
            {
                "step_type": "Action",
                "run_id": "r",
                "inputs": {
                    "purpose": plant("purpose"),
                    "tool": plant("tool"),
                    "arguments": {plant("argument name"): [{"deep": [plant("nested")]}]},
                    "bytes": plant("bytes").encode(),
                    "url": f"data:text/plain;base64,{b64(plant('data URL'))}",
                    "error": error,
                    "set": {plant("set")},
                    "tuple": (plant("tuple"),),
                },
                "outputs": {"result": plant("result"), plant("output name"): 1},
                "metadata": {plant("metadata key"): plant("metadata value")},
                "extra_field": plant("extra field"),
                plant("extra name"): 1,
            }
        )
        memory.add(step)
        memory.score("r", 0.5, plant("feedback"))
        query = plant("query")
        hits = memory.search(f"{query} ordinary")
        net.look_at("hits", [str(hit.step) for hit in hits])
        memory.update(step.model_copy(update={"outputs": {"result": plant("updated")}}))
        look_at_all(net, memory, tmp_path)

    def test_refusals_quote_nothing(self, net: Canaries, memory: StepMemory) -> None:
        refused: list[Any] = [
            AgentStep(step_type=AgentStepType.Action, inputs=nested(net.plant("too deep"))),
            AgentStep(
                step_type=AgentStepType.Action,
                inputs={"purpose": net.plant("too large") + " x" * 5_000_000},
            ),
        ]
        for step in refused:
            with pytest.raises(hs.errors.InvalidStepError) as caught:
                memory.add(step)
            logging.getLogger("hybridagi_steps").debug("refused", exc_info=caught.value)


def nested(text: str) -> dict[str, Any]:
    """Return values nested too deep to be kept."""
    value: dict[str, Any] = {"text": text}
    for _ in range(80):
        value = {"in": value}
    return value


def b64(text: str) -> str:
    """Return a text as base64."""
    return base64.b64encode(text.encode()).decode()


def wrapped(text: str) -> str:
    """Return a text as base64 without padding, in lines."""
    return "\n".join(b64(text).rstrip("=")[place : place + 12] for place in range(0, 99, 12))


def url_safe(text: str) -> str:
    """Return a text as base64 that a URL may hold, with both of its own letters in it."""
    return base64.urlsafe_b64encode(f"{text} ÿ~~>>>??".encode()).decode()


def image(text: str) -> str:
    """Return a picture's bytes with a text chunk, as base64."""
    chunk = text.encode()
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe"
    return base64.b64encode(head + b"tEXtComment\x00" + chunk + b"\xfa\x00\xae\x42").decode()


class TestRecorded:
    def test_programs(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        plant = net.plant
        result, failing = plant("tool result"), plant("tool error")

        def look(place: str, **more: Any) -> str:
            return result

        def fail() -> str:
            raise ValueError(failing)

        look.__doc__ = f"Look somewhere. {plant('tool description')}"
        tools = [
            dspy.Tool(look, arg_desc={"place": plant("argument description")}),
            dspy.Tool(fail),
        ]
        argument, thought, answer = plant("tool argument"), plant("thought"), plant("answer")
        script: list[Any] = [
            {
                "next_thought": thought,
                "next_tool_name": "look",
                "next_tool_args": {"place": argument},
            },
            {"next_thought": "t", "next_tool_name": "fail", "next_tool_args": {}},
            {"next_thought": "t", "next_tool_name": "finish", "next_tool_args": {}},
            {"reasoning": plant("reasoning"), "answer": answer},
        ]
        signature: Any = dspy.Signature("question -> answer", plant("instructions"))  # pyright: ignore[reportCallIssue]
        with dspy.context(lm=ScriptedLM(script)), hs.record(memory, session_id="s") as run:
            dspy.ReAct(signature, tools=tools)(question=plant("question"))
        net.look_at("recorded", run.steps._repr_html_() + str(run.errors) + run._repr_html_())
        look_at_all(net, memory, tmp_path)

    def test_failures_and_functions(
        self, net: Canaries, memory: StepMemory, tmp_path: Path
    ) -> None:
        plant = net.plant

        class Failing(dspy.Module):
            def forward(self, **_: Any) -> Any:
                try:
                    raise KeyError(plant("cause"))
                except KeyError as error:
                    raise ValueError(plant("program error")) from error

        with hs.record(memory) as run:
            with pytest.raises(ValueError, match="canary"):
                Failing()(question=plant("keyword"))
            echo = hs.record_step(kind="action", purpose=plant("purpose"))(echoed)
            echo(plant("argument"))
            failing = ScriptedLM([RuntimeError(plant("LM error"))])
            with dspy.context(lm=failing), pytest.raises(Exception, match="canary"):
                dspy.Predict("question -> answer")(question=plant("asked"))
        net.look_at("errors", [repr(error) for error in run.errors])
        look_at_all(net, memory, tmp_path)


def message_samples(net: Canaries) -> list[Any]:
    """Return messages of every kind of part, each with secrets."""
    plant = net.plant
    call = {
        "id": "c1",
        "type": "function",
        "function": {
            "name": "look",
            "arguments": json.dumps({plant("argument key"): [plant("argument value")]}),
        },
    }
    parts = [
        {"type": "text", "text": plant("text part")},
        {"type": "image_url", "image_url": {"url": f"https://e.x/?k={plant('image URL')}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image(plant('PNG'))}"}},
        {"type": "text", "text": f"see data:text/plain;base64,{b64(plant('text as base64'))}"},
        {
            "type": "document",
            "title": plant("document title"),
            "source": {
                "type": "base64",
                "media_type": "text/plain",
                "data": b64(plant("document")),
            },
        },
        {"type": "input_audio", "input_audio": {"data": b64(plant("audio")), "format": "wav"}},
        {"type": "file", "file": {"file_data": wrapped(plant("file in lines"))}},
        {"type": "text", "text": f"data:;base64,{url_safe(plant('URL-safe base64'))}"},
        {"type": "file", "file": {"file_data": b64(plant("file")), "filename": plant("file name")}},
        {"type": "odd", "odd": {plant("odd key"): plant("odd value")}},
    ]
    return [
        {"role": "system", "content": plant("system prompt")},
        {"role": "user", "content": parts, "name": plant("speaker")},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "reasoning_content": plant("reasoning content"),
            "metadata": {plant("message metadata key"): {"x": plant("message metadata value")}},
        },
        {"role": "tool", "tool_call_id": "c1", "content": plant("tool message"), "name": "look"},
        {
            "role": "assistant",
            "content": plant("assistant message"),
            "content_for_user": plant("content for the user"),
            "refusal": plant("refusal"),
        },
    ]


class TestSessions:
    def test_no_half_of_a_secret_is_shown_of_a_long_error(
        self, net: Canaries, memory: StepMemory
    ) -> None:
        secret = net.plant("at the end of what is shown")

        async def program(_: list[dict[str, Any]]) -> str:
            raise ValueError(f"{'x' * 3_990} {secret} and more")

        events = asyncio.run(collected(hs.StepRunner(program, memory).run_stream("s", "hello")))
        told = json.dumps([event.model_dump(mode="json") for event in events])
        assert "xxx" in told
        assert secret[:7] not in told

    def test_messages(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        repo = memory.repository()

        async def talk() -> None:
            await repo.append("s", message_samples(net))
            steps = await repo.get_steps("s")
            net.look_at("dicts", [step.to_message_dict() for step in steps])

        asyncio.run(talk())
        look_at_all(net, memory, tmp_path)

    def test_by_a_runner(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        plant = net.plant
        result, failing, asked = plant("result"), plant("failure"), list[Any]()

        def look(place: str) -> str:
            """Look."""
            return result

        def fail() -> str:
            """Fail."""
            raise ValueError(failing)

        def consent(request: hs.ToolRequest) -> bool:
            asked.append(request)
            return request.tool != "denied"

        def denied(why: str) -> str:
            """Never run."""
            return why

        config = hs.StepRunnerConfig(consent=consent, termination_summary=True)
        agent = SyncAgent([look, fail, denied])
        long_answer = f"{plant('final answer')} {'so ' * 99}{plant('end of an answer')}"
        reasoning = plant("final reasoning")
        said = [
            thought(plant("thought 1"), "look", place=plant("place 2")),
            thought(plant("thought 2"), "denied", why=plant("denied argument 2")),
            thought("t", "fail"),
            thought("t", "finish"),
            {"reasoning": reasoning, "answer": long_answer},
        ]
        runner = hs.StepRunner(agent, memory, config=config)

        async def talk() -> None:
            with dspy.context(lm=ScriptedLM(said)):
                events = await collected(runner.run_stream("s", plant("user message")))
                net.look_at("events", [event.model_dump(mode="json") for event in events])
            with dspy.context(lm=ScriptedLM([RuntimeError(plant("LM failure"))] * 9)):
                events = await collected(runner.run_stream("s", plant("second message")))
                net.look_at("events", [event.model_dump(mode="json") for event in events])

        asyncio.run(talk())
        look_at_all(net, memory, tmp_path)


class TestDurable:
    def test_runs_in_a_queue(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        plant = net.plant

        async def talk() -> None:
            key = plant("idempotency key of a durable run")
            parts: list[Any] = [{"type": "text", "text": plant("part")}]
            values = {"note": (plant("input"), {plant("input key"): 1})}
            ids = [
                await durable.submit("a", plant("durable message"), idempotency_key=key),
                await durable.submit("b", parts, inputs=values),
                await durable.submit("c", f"failing {plant('durable question')}"),
            ]
            stop = threading.Event()
            worker = threading.Thread(target=durable.run_worker, args=(stop,), daemon=True)
            worker.start()
            try:
                for run_id in ids:
                    result = await asyncio.wait_for(durable.result(run_id), 60)
                    net.look_at("result", repr(result))
                    async for event in durable.events(run_id):
                        net.look_at("event", event.model_dump(mode="json"))
            finally:
                stop.set()
                worker.join(30)

        answer, failure = plant("durable answer"), plant("durable failure")

        async def program(messages: list[dict[str, Any]], **_: Any) -> str:
            if "failing" in str(messages):
                raise ValueError(failure)
            net.look_at("prompt", messages)
            return answer

        durable = hs.DurableRunner(hs.StepRunner(program, memory), poll_seconds=0.05)
        asyncio.run(talk())
        durable.close()
        look_at_all(net, memory, tmp_path)

    def test_plans_in_a_queue(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        plant, prompts = net.plant, list[Any]()
        summary, artifact, failure = plant("summary"), plant("artifact"), plant("step failure")
        written = plant("file content")

        async def execute(work: Work, place: Workspace | None) -> Finished:
            prompts.append(work.model_dump(mode="json"))
            if work.step.id == "b" and work.attempt == 1:
                raise ValueError(failure)
            assert place is not None
            place.write(f"{work.step.id}.txt", written)
            found = dspy.Predict("question -> answer")(question=asked)
            return Finished(summary=summary + found.answer, artifacts={"x": {artifact: artifact}})

        asked, said = plant("prompt of a step"), plant("answer in a step")
        steps = [
            PlanStep(id="a", goal=plant("goal"), artifacts=["x"]),
            PlanStep(id="b", goal="g", dependencies=["a"], artifacts=["x"]),
        ]
        plan = Plan(name="p", description=plant("plan description"), steps=steps)
        (tmp_path.parent / f"{tmp_path.name}-files").mkdir()
        files = tmp_path.parent / f"{tmp_path.name}-files"
        queue = DurableQueue(tmp_path / "plans.sqlite", poll_seconds=0.05)
        settings: dict[str, Any] = {
            "executor": execute,
            "durable": queue,
            "memory": memory,
            "session_id": "s",
        }
        place = Workspace(files, state=tmp_path.parent / f"{tmp_path.name}-state")
        orchestrator = hs.Orchestrator(
            workspace=place, lm=ScriptedLM([{"answer": said}] * 9), **settings
        )
        result = orchestrator.run(plant("requirement"), plan=plan, key=plant("key of a run"))
        queue.close()
        assert result.success, result
        assert (files / "a.txt").read_text() == written
        net.look_at("work", prompts)
        look_at_all(net, memory, tmp_path)


def planted_shapes(net: Canaries, value: Any) -> Any:
    """Return a sample of a format with a secret beside every text that a person or model said."""
    if isinstance(value, list):
        return [planted_shapes(net, item) for item in value]
    if isinstance(value, dict):
        return {
            key: f"{item} {net.plant(key)}"
            if isinstance(item, str) and key in SPOKEN
            else planted_shapes(net, item)
            for key, item in value.items()
        }
    return value


SPOKEN = frozenset("content text question answer query prompt thinking result error".split())  # noqa: SIM905
SAMPLES = Path(__file__).parents[1] / "samples"


class TestImports:
    @pytest.mark.parametrize("name", sorted(each.name for each in SAMPLES.glob("*.json*")))
    def test_every_format(
        self, net: Canaries, memory: StepMemory, tmp_path: Path, name: str
    ) -> None:
        planted, rest = list[Any](), (SAMPLES / name).read_text().strip()
        while rest:
            value, length = json.JSONDecoder().raw_decode(rest)
            planted.append(planted_shapes(net, value))
            rest = rest[length:].strip()
        source = tmp_path.parent / f"{tmp_path.name}-{name}"
        source.write_text("\n".join(map(json.dumps, planted)))
        report = import_file(memory, source)
        net.look_at("report", repr(report))
        look_at_all(net, memory, tmp_path)


class TestServed:
    def test_over_http(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        plant = net.plant
        answer, failure = plant("streamed answer"), plant("failure of a served program")

        async def program(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
            if "fail" in str(messages[-1]):
                raise ValueError(failure)
            for piece in (answer[:9], answer[9:], " and more" * 30):
                yield piece

        with serving(memory, program) as served:
            header = {"X-Secret": plant("header")}
            for key in ("httpx", "httpcore"):  # the test's own client, not ours
                logging.getLogger(key).setLevel(logging.CRITICAL)
            for text in (plant("chat message"), f"fail {plant('failing message')}"):
                header["Idempotency-Key"] = text[:4]
                net.look_at("stream", [list(each) for each in served.chat("s", text, **header)])
            gets: list[tuple[str, dict[str, Any]]] = [
                ("/search", {"q": plant("search over HTTP")}),
                ("/search", {"q": "more", "run_id": plant("filter")}),
                *((path, {}) for path in ("/sessions", "/sessions/s/steps", "/runs", "/")),
            ]
            for path, asked in gets:
                reply = served.client.get(path, params=asked, headers=header)
                net.look_at(f"answer of {path}", reply.text)
            for listed in memory.runs():
                net.look_at("run", served.client.get(f"/runs/{listed.run_id}").text)
        look_at_all(net, memory, tmp_path)

    def test_over_mcp(self, net: Canaries, memory: StepMemory, tmp_path: Path) -> None:
        mcp = pytest.importorskip("hybridagi_steps.server.mcp_server", reason="needs `mcp`")
        server, plant = mcp.create_mcp_server(memory), net.plant

        async def talk() -> None:
            inputs = {"purpose": plant("step over MCP"), "arguments": {plant("key over MCP"): 1}}
            outputs = {"result": plant("result over MCP")}
            step = {"step_type": "Action", "inputs": inputs, "outputs": outputs, "run_id": "r"}
            calls: list[tuple[str, dict[str, Any]]] = [
                ("add_step", step),
                ("search_steps", {"query": plant("search over MCP")}),
                ("get_run", {"run_id": "r"}),
            ]
            for name, arguments in calls:
                net.look_at(name, repr(await server.call_tool(name, arguments)))

        asyncio.run(talk())
        assert memory.stats()["steps"] == 1
        look_at_all(net, memory, tmp_path)


class TestGraphs:
    def test_programs_and_the_answers_of_users(
        self, net: Canaries, memory: StepMemory, tmp_path: Path
    ) -> None:
        plant = net.plant
        told = plant("answer of a user")
        program = GraphProgram(name="main", description=plant("program description"))
        program.add(Action("ask", "AskUser", plant("purpose of a node"), plant("prompt of a node")))
        program.connect("start", "ask").connect("ask", "end").build()
        with dspy.context(lm=ScriptedLM([{"question": plant("question to a user")}] * 3)):
            agent = GraphInterpreter(program, [AskUser(lambda _: told)], memory)
            out = agent(query=plant("query of a program"))
        net.look_at("trace", repr(out.program_trace))
        look_at_all(net, memory, tmp_path)

    @pytest.mark.parametrize("how", ["by hand", "by an agent"])
    def test_programs_that_are_kept(
        self, net: Canaries, memory: StepMemory, tmp_path: Path, how: str
    ) -> None:
        plant = net.plant
        program = GraphProgram("greet", f"Greet {plant('program description')}")
        program.add(Decision("known", plant("purpose of a decision"), plant("question")))
        program.add(Action("hi", "Speak", plant("purpose of a node"), plant("prompt of a node")))
        program.add(Program("more", plant("purpose of a call"), "greet"))
        program.connect("start", "known").connect("known", "hi", "YES")
        program.connect("known", "more", "NO").connect("hi", "end").connect("more", "end").build()
        with ProgramMemory(memory) as programs:
            if how == "by hand":
                programs.add(program)
            else:
                given = json.dumps({"name": "greet", "program": program.to_cypher()})
                add = Action("a", "AddGraphProgram", "Keep", "{{ query }}", ["query"])
                keeping = GraphProgram("main").add(replace(add, disable_inference=True))
                keeping.connect("start", "a").connect("a", "end")
                tools = [AddGraphProgram(programs), Speak()]
                out = GraphInterpreter(keeping, tools, memory)(query=given)
                assert out.final_answer == "greet"
            programs.search(f"greet {plant('query')}")
            net.look_at("kept", programs.get("greet").to_cypher())
            net.look_at("unpickled", pickle.loads(pickle.dumps(programs)).redact(plant("later")))
            assert [*programs.get("greet").nodes] == [*program.nodes]
            assert "[gone]" in programs.get("greet").description
        look_at_all(net, memory, tmp_path)


def all_ids(net: Canaries) -> tuple[AgentStep, list[Any]]:
    """Return a step and messages with a secret in everything that is an id."""
    plant = net.plant
    step = AgentStep(
        step_type=AgentStepType.Action,
        id=plant("step id"),
        parent_id=plant("parent_id"),
        run_id=plant("run_id"),
        session_id=plant("session_id"),
        user_id=plant("user_id"),
        program_id=plant("program_id"),
        scope=plant("scope"),
    )
    call = {"id": plant("id of a call"), "type": "function", "function": {"name": "look"}}
    said: list[Any] = [
        {
            "id": plant("message id"),
            "run_id": plant("message run_id"),
            "agent_step_id": plant("agent_step_id"),
            "parent_run_id": plant("parent_run_id"),
            "role": "user",
            "content": [{"type": plant("type of a part"), "text": "x"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": plant("tool_call_id"), "content": "y"},
    ]
    return step, said


def named_program(net: Canaries) -> GraphProgram:
    """Return a program with a secret in everything that its parts are matched by."""
    plant = net.plant
    variable, node = plant("variable"), plant("node id")
    program = GraphProgram(plant("program name"), "d", [variable])
    program.add(Decision("d", "p", "q", [variable])).connect("start", "d")
    program.add(Action(node, plant("tool of a node"), "p")).connect("d", node, plant("edge label"))
    return program.connect("d", "end", "NO").connect(node, "end")


class TestByDesign:
    def test_only_ids_are_stored_as_they_are(self, tmp_path: Path) -> None:
        net = Canaries(tmp_path)
        step, said = all_ids(net)
        name, key = net.plant("namespace"), net.plant("idempotency key")
        with StepMemory(
            tmp_path / "steps.db", embedder="hashing", redact=redact, namespace=name
        ) as memory:
            repo = memory.repository()
            asyncio.run(repo.commit(str(step.session_id), said, [step], idempotency_key=key))
            with ProgramMemory(memory) as programs:
                programs.add(named_program(net))
            memory.flush()
        found = set[str]().union(*net.leaks().values())
        assert found == AS_GIVEN
        told = (Path(__file__).parents[2] / ".github/docs/guarantees.md").read_text()
        missing = [name for name in sorted(AS_GIVEN) if f"`{name}`" not in told]
        assert missing == []


class TestErased:
    @pytest.mark.parametrize("how", ["user", "session", "run", "clear"])
    def test_no_byte_is_left(self, net: Canaries, tmp_path: Path, how: str) -> None:
        step, ids = all_ids(net)
        said = [*ids, *message_samples(net)] if how != "run" else []
        step.inputs = {"purpose": net.plant("purpose"), "arguments": {"a": net.plant("argument")}}
        step.metadata = {"tag": net.plant("tag")}
        session = str(step.session_id)
        with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
            memory.add(
                AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "of somebody else"})
            )
            if how == "run":
                memory.add(step)
            else:
                key = net.plant("idempotency key")
                work = memory.repository().commit(session, said, [step], idempotency_key=key)
                asyncio.run(work)
            memory.score(str(step.run_id), 1.0, net.plant("feedback"))
            memory.search("purpose", where={"scope": "*"})
            memory.flush()
            assert net.leaks() != {}
            where = {"user_id": step.user_id, "session_id": session, "run_id": step.run_id}
            if how == "clear":
                memory.clear()
                memory.vacuum()
            else:
                memory.purge({f"{how}_id": where[f"{how}_id"]})
            assert memory.verify() == []
            assert net.leaks() == {}
            memory.search("purpose")
            memory.flush()
