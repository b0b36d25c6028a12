"""`keep_prompts`: what the model saw, kept on request, redacted, and gone with its step."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
from canaries import redact
from recorder_programs import all_steps
from runner_cases import messages, run

import hybridagi_steps as hs
from hybridagi_steps.cli import main
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.stores.prompts import packed, prompt_of_calls
from hybridagi_steps.testing import plausible_reply, scripted_lm

pytestmark = pytest.mark.filterwarnings("ignore:Passing OpenAI-style:DeprecationWarning")
SECRET = "canary01x7f3a9c01"  # noqa: S105 - it is none


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


@pytest.fixture(autouse=True)
def lm() -> Iterator[Any]:
    """A model that answers whatever it is asked."""
    model = scripted_lm(plausible_reply, temperature=0.25)
    with dspy.context(lm=model):
        yield model


def look(word: str) -> str:
    """Look a word up."""
    return f"{word} means {SECRET}"


def never(_: Any, __: Any) -> float:
    """No attempt is good."""
    return 0.0


def prompted(memory: hs.StepMemory) -> dict[str, list[LMCall]]:
    """The calls of each step that has some, by its purpose."""
    found = {step.purpose: memory.prompt_of(step.id) for step in all_steps(memory)}
    return {purpose: calls for purpose, calls in found.items() if calls}


def test_a_step_shows_what_the_model_was_sent_and_gave(memory: hs.StepMemory, lm: Any) -> None:
    with hs.record(memory, keep_prompts=True) as recorded:
        dspy.Predict("question -> answer")(question="why?")
    assert recorded.errors == []
    [[call]] = prompted(memory).values()
    assert call.lm == lm.model
    assert [message["role"] for message in call.messages] == ["system", "user"]
    assert "why?" in call.messages[1]["content"]
    assert call.settings["temperature"] == 0.25
    assert "## answer ##" in json.dumps(call.completion)


def test_no_key_of_a_provider_is_kept(memory: hs.StepMemory) -> None:
    model = dspy.utils.DummyLM([{"answer": "x"}])
    model.kwargs |= {"temperature": 0.5, "api_key": "sk-do-not-keep"}
    with dspy.context(lm=model), hs.record(memory, keep_prompts=True):
        dspy.Predict("question -> answer")(question="why?")
    [[call]] = prompted(memory).values()
    assert call.settings["temperature"] == 0.5
    assert "sk-do-not-keep" not in call.model_dump_json()


def test_nothing_is_kept_unless_it_is_asked_for(memory: hs.StepMemory) -> None:
    with hs.record(memory) as recorded:
        dspy.Predict("question -> answer")(question="why?")
    assert prompted(memory) == {}
    assert [memory.prompt_of(step.id) for step in recorded.steps.steps] == [[]]
    with pytest.raises(hs.errors.UnknownStepError):
        memory.prompt_of("nobody")


def test_every_turn_of_an_agent_has_its_own(memory: hs.StepMemory) -> None:
    agent = dspy.ReAct("question -> answer", tools=[look])
    lines = [
        {"next_thought": "one", "next_tool_name": "look", "next_tool_args": {"word": "x"}},
        {"next_thought": "two", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "r", "answer": "42"},
    ]
    with dspy.context(lm=dspy.utils.DummyLM(lines)), hs.record(memory, keep_prompts=True):
        agent(question="why?")
    found = prompted(memory)
    assert [len(calls) for calls in found.values()] == [1, 1, 1]
    one, two = found["one"], found["two"]
    assert "one" not in one[0].messages[-1]["content"]
    assert "[[ ## thought_0 ## ]]\none" in two[0].messages[-1]["content"]
    assert one[0].messages[0] == two[0].messages[0]


@pytest.mark.parametrize("how", ["recorder", "recorded", "inner block", "pickle"])
def test_every_way_of_recording_keeps_them(how: str, memory: hs.StepMemory, tmp_path: Path) -> None:
    predict = dspy.Predict("question -> answer")
    if how == "recorder":
        with dspy.context(callbacks=[hs.StepRecorder(memory, keep_prompts=True)]):
            predict(question="why?")
    elif how == "recorded":
        hs.Recorded(predict, memory, keep_prompts=True)(question="why?")
    elif how == "inner block":
        with hs.record(memory, keep_prompts=True), hs.record(memory):
            predict(question="why?")
    else:
        file = hs.StepMemory(tmp_path / "steps.db", embedder="hashing")
        recorder = pickle.loads(pickle.dumps(hs.StepRecorder(file, keep_prompts=True)))
        with dspy.context(callbacks=[recorder]):
            predict(question="why?")
        memory = file
    assert len(prompted(memory)) == 1


def test_a_model_asked_by_a_program_itself_and_one_that_fails(memory: hs.StepMemory) -> None:
    history = [{"role": "user", "content": "hello"}]

    def broken(_: Any) -> Any:
        raise ValueError("no model here")

    with hs.record(memory, keep_prompts=True) as recorded:
        dspy.settings.lm(messages=history, temperature=0.5)
        history[0]["content"] = "written over later"
        with pytest.raises(Exception, match="no model here"), dspy.context(lm=scripted_lm(broken)):
            dspy.settings.lm("shout")
    [said], [failed] = (memory.prompt_of(step.id) for step in recorded.steps.steps)
    assert said.messages == [{"role": "user", "content": "hello"}]
    assert said.settings["temperature"] == 0.5
    assert failed.messages == [{"role": "user", "content": "shout"}]
    assert (failed.completion, "no model here" in str(failed.error)) == (None, True)


def test_a_request_of_dspys_own_kind(memory: hs.StepMemory) -> None:
    from dspy.lm15 import Config, Message, Request  # pyright: ignore[reportAttributeAccessIssue]

    asked = Request(
        model=dspy.settings.lm.model,
        messages=(Message.user("hello"),),
        system="be kind",
        config=Config(temperature=0.75),
    )
    with hs.record(memory, keep_prompts=True) as recorded:
        dspy.settings.lm(asked)
    [call] = memory.prompt_of(recorded.steps.steps[0].id)
    assert [message["role"] for message in call.messages] == ["system", "user"]
    assert "be kind" in json.dumps(call.messages[0])
    assert "hello" in repr(memory.prompt_of(recorded.steps.steps[0].id))
    assert call.settings["temperature"] == 0.75
    assert call.completion


def test_pictures_stand_as_a_few_words(memory: hs.StepMemory) -> None:
    url = "data:image/png;base64," + "A" * 5_000
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
    with hs.record(memory, keep_prompts=True) as recorded:
        dspy.settings.lm(messages=[{"role": "user", "content": parts}])
    [call] = memory.prompt_of(recorded.steps.steps[0].id)
    assert "AAAA" not in call.model_dump_json()
    assert "5,022 characters" in call.model_dump_json()


def test_what_a_memory_redacts_is_in_no_prompt(tmp_path: Path) -> None:
    with hs.StepMemory(tmp_path / "s.db", embedder="hashing", redact=redact) as memory:
        with hs.record(memory, keep_prompts=True):
            dspy.Predict("question -> answer")(question=f"who is {SECRET}?")
            dspy.settings.lm(f"again {SECRET}", stop=[SECRET])
        calls = [call for found in prompted(memory).values() for call in found]
        assert len(calls) == 2
        shown = json.dumps([call.model_dump(mode="json") for call in calls])
        assert SECRET not in shown
        assert shown.count("[gone]") >= 3


def test_no_key_of_a_call_that_a_program_made_is_left_unredacted(tmp_path: Path) -> None:
    step = hs.AgentStep.model_validate({"step_type": "Action"})
    odd: dict[str, Any] = {SECRET: {SECRET: SECRET}}
    call = LMCall(
        messages=[{"role": "user", "content": "hello", **odd}],
        tools=[{"type": "function", **odd}],
        settings={"temperature": 0.5, **odd},
        completion=[{"text": "hi", **odd}],
    )
    with hs.StepMemory(tmp_path / "s.db", embedder="hashing", redact=redact) as memory:
        memory.add(step)
        memory.keep_prompts({str(step.id): [call]})
        [kept] = memory.prompt_of(step.id)
    assert SECRET not in kept.model_dump_json()
    assert (kept.messages[0]["role"], kept.messages[0]["content"]) == ("user", "hello")
    assert (kept.tools[0]["type"], kept.settings["temperature"]) == ("function", 0.5)
    assert kept.completion[0]["text"] == "hi"


def test_a_redaction_of_everything_leaves_what_calls_are_read_by(memory: hs.StepMemory) -> None:
    step = hs.AgentStep.model_validate({"step_type": "Action"})
    function = {"name": "look", "description": "Look.", "parameters": {}}
    call = LMCall(
        messages=[{"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "hi"}],
        tools=[{"type": "function", "function": function}],
        settings={"temperature": 0.5, "max_tokens": 9},
        completion=[{"text": "hi", "tool_calls": [], "reasoning_content": "x"}],
    )
    memory.redact = lambda _: "[gone]"
    memory.add(step)
    memory.keep_prompts({str(step.id): [call]})
    [kept] = memory.prompt_of(step.id)
    assert kept.messages[0].keys() == call.messages[0].keys()
    assert kept.settings == call.settings
    assert kept.completion[0].keys() == call.completion[0].keys()
    assert kept.tools[0].keys() == call.tools[0].keys()


def test_a_redaction_that_fails_keeps_the_step_and_no_prompt() -> None:
    def fails_on_long_texts(text: str) -> str:
        if "structured in the following way" in text:
            raise ValueError(SECRET)
        return text

    with hs.StepMemory(":memory:", embedder="hashing", redact=fails_on_long_texts) as memory:
        with hs.record(memory, keep_prompts=True) as recorded:
            dspy.Predict("question -> answer")(question="why?")
        assert len(recorded.steps.steps) == 1
        assert [problem.what for problem in recorded.errors] == ["a prompt was not kept"]
        assert SECRET not in str(recorded.errors)
        assert prompted(memory) == {}


@pytest.mark.parametrize("how", ["delete", "purge a user", "purge a run", "clear", "session"])
def test_no_byte_of_a_prompt_outlives_its_step(how: str, tmp_path: Path) -> None:
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        ann: Any = None
        for user in ("ann", "bob"):
            with hs.record(memory, keep_prompts=True, user_id=user, session_id=user) as recorded:
                dspy.Predict("question -> answer")(question=f"I am {user} " + "and more\n" * 400)
            ann = ann or recorded
        [step] = ann.steps.steps
        calls = memory.prompt_of(step.id)
        parts = [packed(part) for part in prompt_of_calls(calls).parts.values()]
        assert any(holds(tmp_path, part) for part in parts)
        shared = prompt_of_calls(memory.prompt_of(all_steps(memory)[-1].id)).parts
        own = [packed(p) for n, p in prompt_of_calls(calls).parts.items() if n not in shared]
        assert own
        assert len(own) < len(parts)
        if how == "delete":
            memory.delete(step.id)
            memory.vacuum()
        elif how == "clear":
            memory.clear()
            memory.vacuum()
            own = parts
        else:
            memory.purge(
                {"purge a user": {"user_id": "ann"}, "session": {"session_id": "ann"}}.get(
                    how, {"run_id": ann.id}
                )
            )
        memory.close()
    assert not any(holds(tmp_path, part) for part in own)


def seeing(memory: hs.StepMemory, words: str) -> int:
    """How many calls hold some words."""
    found = [call for step in all_steps(memory) for call in memory.prompt_of(step.id)]
    return sum(words in call.model_dump_json() for call in found)


def test_what_a_user_said_leaves_the_prompts_of_others(memory: hs.StepMemory) -> None:
    program = dspy.Predict("history: dspy.History, message -> answer")
    config = hs.StepRunnerConfig(keep_prompts=True)
    runner = hs.StepRunner(program, memory, config=config, input_field="message")
    for user, question in (("ann", "my stone is a ruby"), ("bob", "and mine?"), ("cy", "hello")):
        run(runner, hs.AgentSession("shared", user, as_any_user=True), question)
    run(runner, "another", "what of me?")

    assert seeing(memory, "ruby") == 3
    memory.purge({"user_id": "ann"})
    assert (seeing(memory, "ruby"), seeing(memory, "what of me?")) == (0, 1)


def test_what_a_user_said_leaves_the_prompts_of_forks(memory: hs.StepMemory) -> None:
    config = hs.StepRunnerConfig(keep_prompts=True)
    runner = hs.StepRunner(dspy.Predict("question -> answer"), memory, config=config)
    run(runner, hs.AgentSession("trip", "ann"), "my stone is a ruby")
    fork = asyncio.run(hs.fork_session("trip", 2, memory.repository()))
    run(runner, hs.AgentSession(fork, "bob", as_any_user=True), "and his?")
    again = asyncio.run(hs.fork_session(fork, 4, memory.repository()))
    run(runner, hs.AgentSession(again, "bob", as_any_user=True), "once more?")
    run(runner, hs.AgentSession("another", "bob"), "what of me?")
    assert seeing(memory, "ruby") == 3
    memory.purge({"user_id": "ann"})
    assert (seeing(memory, "ruby"), seeing(memory, "what of me?")) == (0, 1)


def test_what_a_tool_gave_leaves_the_prompts_of_its_run(memory: hs.StepMemory) -> None:
    lines = [
        {"next_thought": "one", "next_tool_name": "look", "next_tool_args": {"word": "x"}},
        {"next_thought": "two", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "r", "answer": "42"},
    ]
    agent = dspy.ReAct("question -> answer", tools=[look])
    with hs.record(memory, keep_prompts=True):
        dspy.Predict("question -> answer")(question="of another run")
    with dspy.context(lm=dspy.utils.DummyLM(lines)), hs.record(memory, keep_prompts=True):
        agent(question="why?")
    assert seeing(memory, SECRET) == 2
    memory.purge({"tools": ["look"]})
    assert (seeing(memory, SECRET), seeing(memory, "of another run")) == (0, 1)


def nested(memory: hs.StepMemory) -> Any:
    """An agent that has a clerk ask an expert, each in a session of its own; the first keeps none.

    The clerk keeps no prompts, the others do.
    """

    def agent(tool: dspy.Tool | None, *, keep: bool) -> hs.StepRunner:
        async def program(messages: list[dict[str, Any]]) -> str:
            said = messages[-1]["content"]
            await asked.acall(question=said)
            return str(await tool.acall(message=f"{said}, said he") if tool else "A fine one.")

        asked = dspy.Predict("question -> answer")
        return hs.StepRunner(program, memory, config=hs.StepRunnerConfig(keep_prompts=keep))

    expert = agent(None, keep=True).as_tool("expert", "An expert.")
    clerk = agent(expert, keep=False).as_tool("clerk", "A clerk.")
    return agent(clerk, keep=True)


def test_what_a_session_said_leaves_the_prompts_of_agents_that_it_asked(
    memory: hs.StepMemory,
) -> None:
    runner = nested(memory)
    run(runner, "shop", "my stone is a ruby")
    run(runner, "another", "what of me?")
    assert (seeing(memory, "ruby"), seeing(memory, "what of me?")) == (2, 2)
    memory.purge({"session_id": "shop"})
    assert (seeing(memory, "ruby"), seeing(memory, "what of me?")) == (0, 2)
    assert memory.verify() == []


def test_what_a_session_said_leaves_the_prompts_of_blocks_inside_it(memory: hs.StepMemory) -> None:
    asked = dspy.Predict("question -> answer")
    for outer, words in (("shop", "a ruby"), ("another", "what of me?")):
        with hs.record(memory, session_id=outer):
            asked(question=words)
            with hs.record(memory, session_id=f"inside {outer}", keep_prompts=True):
                asked(question=words)
    assert (seeing(memory, "ruby"), seeing(memory, "what of me?")) == (1, 1)
    memory.purge({"session_id": "shop"})
    assert (seeing(memory, "ruby"), seeing(memory, "what of me?")) == (0, 1)


def test_what_a_run_said_leaves_the_prompts_of_runs_that_recalled_it(
    memory: hs.StepMemory,
) -> None:
    with hs.record(memory) as first:
        dspy.Predict("question -> answer")(question="my stone is a ruby")
    for query in ("stone ruby", "nothing of it"):
        with hs.record(memory, keep_prompts=True):
            found = memory.search(query, 1, where={"run_id": first.id}) if "ruby" in query else []
            past = [str(hit.step.inputs) for hit in found]
            dspy.Predict("past, question -> answer")(past=past, question="and now?")
    assert (seeing(memory, "ruby"), seeing(memory, "and now?")) == (1, 2)
    memory.purge({"run_id": first.id})
    assert (seeing(memory, "ruby"), seeing(memory, "and now?")) == (0, 1)


@pytest.mark.parametrize("where", [{"user_id": "ann"}, {"session_id": "shared"}, {"tools": "look"}])
def test_a_purge_that_is_cut_short_anywhere_and_repeated_leaves_no_word(
    memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    config = hs.StepRunnerConfig(keep_prompts=True)
    program = dspy.ReAct("question -> answer", tools=[look], max_iters=2)
    runner = hs.StepRunner(program, memory, config=config)
    writes = ("rewrite_messages", "delete_session", "delete", "forget_prompts", "compact")
    plain = {name: getattr(memory._store, name) for name in writes}
    left, allowed = 0, -1

    def cut(name: str, *given: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return plain[name](*given, **more)

    for name in writes:
        monkeypatch.setattr(memory._store, name, partial(cut, name))
    while left <= 0:
        left = allowed = allowed + 1
        looked = {"next_thought": "t", "next_tool_name": "look", "next_tool_args": {"word": "ruby"}}
        lines = [looked, {**looked, "next_tool_name": "finish", "next_tool_args": {}}]
        lines.append({"reasoning": "r", "answer": "42"})
        for user in ("ann", "bob"):
            with dspy.context(lm=dspy.utils.DummyLM(lines)):
                run(runner, hs.AgentSession("shared", user, as_any_user=True), f"{user}: {SECRET}")
        assert seeing(memory, SECRET)
        with suppress(KeyboardInterrupt):
            memory.purge(where)
        kept, left = left, 1_000
        memory.purge(where)
        words = f"ann: {SECRET}" if "user_id" in where else SECRET
        # The question stays with its session when only what a tool gave is purged.
        words = f"means {SECRET}" if "tools" in where else words
        assert seeing(memory, words) == 0, f"cut after {allowed} writes"
        memory.clear()
        left = kept
    assert allowed > 3


def holds(folder: Path, blob: bytes) -> bool:
    """Whether any file holds these bytes."""
    return any(blob in path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_prompts_are_in_no_export_and_no_search(memory: hs.StepMemory, tmp_path: Path) -> None:
    from hybridagi_steps.exchange import export_file

    with hs.record(memory, keep_prompts=True):
        dspy.Predict("question -> answer")(question="why?")
    export_file(memory, tmp_path / "out.jsonl")
    assert "structured in the following way" not in (tmp_path / "out.jsonl").read_text()
    assert all(
        "structured" not in hit.step.model_dump_json()
        for hit in memory.search("structured following way", 10, mode="lexical")
    )


def test_losing_attempts_keep_what_their_models_saw(memory: hs.StepMemory) -> None:
    best = dspy.BestOfN(dspy.Predict("question -> answer"), N=3, reward_fn=never, threshold=1.0)
    with hs.record(memory, keep_prompts=True):
        best(question="why?")
    tried = [step for step in all_steps(memory) if step.step_type == "Action"]
    assert len(tried) == 3
    assert all(memory.prompt_of(step.id) for step in tried)


def test_a_runner_keeps_them_beside_the_steps_of_its_turn(memory: hs.StepMemory) -> None:
    asked = dspy.Predict("question -> answer")
    by_config = [(hs.StepRunnerConfig(keep_prompts=keep), False, keep) for keep in (True, False)]
    for config, told, keep in (*by_config, (None, True, True)):
        runner = hs.StepRunner(asked, memory, config=config, keep_prompts=told)
        session = f"chat {keep} {told}"
        run(runner, session, "Hello there")
        assert messages(memory, session)[-1].role == "assistant"
        steps = memory.find({"session_id": session}).steps
        calls = [call for step in steps for call in memory.prompt_of(step.id)]
        assert len(calls) == keep
        assert all("Hello there" in call.messages[-1]["content"] for call in calls)


def test_a_memory_that_keeps_none_is_refused(memory: hs.StepMemory) -> None:
    class Plain:
        """A memory of another make."""

        add = run = print

    plain: Any = Plain()
    for record in (hs.record, hs.StepRecorder):
        with pytest.raises(hs.errors.InvalidMemoryError, match=r"keep_prompts\(\)"):
            record(plain, keep_prompts=True)
    odd: Any = "yes"
    with pytest.raises(hs.errors.InvalidSettingError, match="True or False"):
        hs.record(memory, keep_prompts=odd)
    with pytest.raises(hs.errors.InvalidSettingError, match="True or False"):
        hs.StepRunner(dspy.Predict("question -> answer"), memory, keep_prompts=odd)


def test_people_see_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.db"
    with hs.StepMemory(path, embedder="hashing") as memory:
        with hs.record(memory, keep_prompts=True) as recorded:
            dspy.Predict("question -> answer")(question="why <b>is</b> it?")
        step_id = str(recorded.steps.steps[0].id)
        calls = memory.prompt_of(step_id)
        assert "why <b>is</b> it?" in repr(calls)
        assert "temperature 0.25" in repr(calls)
        assert "why &lt;b&gt;is&lt;/b&gt; it?" in calls._repr_html_()
        assert repr(memory.prompt_of(step_id)[:0]) == "[]"
    assert main(["show", step_id, "--db", str(path)]) == 0
    short = capsys.readouterr().out
    assert "what the model saw" in short
    assert "3 messages" in short
    assert "structured in the following way" not in short
    assert main(["show", step_id, "--prompt", "--db", str(path)]) == 0
    assert "structured in the following way" in capsys.readouterr().out
    assert main(["show", step_id, "--json", "--db", str(path)]) == 0
    [told] = json.loads(capsys.readouterr().out)["prompt"]
    assert LMCall.model_validate(told) == calls[0]
