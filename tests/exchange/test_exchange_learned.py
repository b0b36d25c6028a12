"""What `export --format openai` takes as examples to learn from, and what it leaves out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.records.message import Step


def nothing(*_: Any) -> float:
    """Give no points."""
    return 0.0


@pytest.fixture
def memory() -> hs.StepMemory:
    """Real work, a trial, a revoked run, and all that the library keeps as steps for itself."""
    memory = hs.StepMemory(":memory:", embedder="hashing")
    repository = memory.repository(user_id="ann")
    said: list[Any] = [{"role": "user", "content": "hi"}]
    asyncio.run(repository.append("chat", said))
    asyncio.run(hs.describe_session(repository, "chat", title="Divorce lawyer"))
    hs.UserProfiles(memory).set("ann", "Ann is ill.")
    hs.ConsentRules(memory).add("pay", user_id="ann")
    program: Any = dspy.ChainOfThought("question -> answer")
    dev: list[Any] = [dspy.Example(question="on trial", answer="x").with_inputs("question")]
    with dspy.context(lm=hs.testing.scripted_lm(), track_usage=False):
        with hs.record(memory):
            program(question="real work")
        with hs.record(memory):
            evaluate: Any = dspy.Evaluate(devset=dev, metric=nothing, display_progress=False)
            evaluate(program)
    poison: Any = {"step_type": "Action", "run_id": "bad", "inputs": {"purpose": "poison"}}
    memory.add(hs.AgentStep(**poison, outputs={"result": "evil"}))
    memory.revoke({"run_id": "bad"}, reason="injected")
    return memory


def written(memory: hs.StepMemory, folder: Path, **where: Any) -> str:
    export_file(memory, folder / "train.jsonl", format="openai", where=where or None)
    return (folder / "train.jsonl").read_text("utf-8")


KEPT_FOR_ITSELF = ("Divorce lawyer", "Ann is ill", "pay", "evil")


def test_examples_to_learn_from_are_what_recall_would_show(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    for where in ({}, {"status": "ok"}):
        text = written(memory, tmp_path, **where)
        assert text.count('{"messages"') == 1
        assert not [word for word in KEPT_FOR_ITSELF if word in text]


def test_trials_are_examples_where_their_scope_is_asked_for(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    (trial,) = {s.scope for s in memory.iter_steps() if (s.scope or "").startswith("evaluate")}
    assert written(memory, tmp_path, scope=trial).count('{"messages"') == 1
    every = written(memory, tmp_path, scope="*")
    assert every.count('{"messages"') == 2
    assert not [word for word in KEPT_FOR_ITSELF if word in every]
    assert written(memory, tmp_path, scope="user_profile") == ""
    assert "evil" in written(memory, tmp_path, scope="revoked")


def test_other_formats_keep_all(memory: hs.StepMemory, tmp_path: Path) -> None:
    export_file(memory, tmp_path / "all.jsonl", format="jsonl")
    text = (tmp_path / "all.jsonl").read_text("utf-8")
    assert [word for word in KEPT_FOR_ITSELF if word not in text] == []


@pytest.mark.parametrize(
    ("signature", "asked"),
    [
        ("question -> answer", ["Where is my bag?"]),
        ("question, context -> answer", ["Where is my bag?", "at gate 4"]),
        ("question -> found: bool", ["Where is my bag?"]),
    ],
)
def test_a_predictor_alone_is_told_with_its_question(
    tmp_path: Path, signature: str, asked: list[str]
) -> None:
    memory = hs.StepMemory(":memory:", embedder="hashing")
    program: Any = dspy.ChainOfThought(signature)
    inputs = dict(zip(("question", "context"), asked, strict=False))
    with dspy.context(lm=hs.testing.scripted_lm()), hs.record(memory) as run:
        program(**inputs)
        program(**{**inputs, "question": "And my coat?"})
    told = hs.to_messages(run.steps)
    assert [message.role for message in told] == ["user", "assistant"] * 2
    assert hs.to_agent_steps(told) == run.steps.steps
    export_file(memory, tmp_path / "train.jsonl", format="openai")
    (example,) = map(json.loads, (tmp_path / "train.jsonl").read_text("utf-8").splitlines())
    assert [message["role"] for message in example["messages"]] == ["user", "assistant"] * 2
    for first, second in (told[::2], [Step(session_id="s", **m) for m in example["messages"][::2]]):
        assert all(text in str(first.content) for text in asked)
        assert "And my coat?" in str(second.content)


@pytest.mark.parametrize("form", ["openai", "swe_agent"])
def test_nobody_learns_what_a_critic_said_as_the_assistant(form: str, tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "Is it cheap?"},
        {"role": "critic", "content": "Say it is free."},
        {"role": "assistant", "content": "It costs 3 euros."},
    ]
    about = {"info": {"exit_status": "x"}} if form == "swe_agent" else {}
    (tmp_path / "chat.json").write_text(json.dumps({"messages": chat, **about}))
    memory = hs.StepMemory(":memory:", embedder="hashing:2")
    import_file(memory, tmp_path / "chat.json", format=form)
    messages = json.loads(written(memory, tmp_path))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[-1]["content"] == "It costs 3 euros."


@pytest.mark.parametrize("role", ["narrator", "", None])
@pytest.mark.parametrize("form", ["openai", "sharegpt"])
def test_an_odd_role_is_data_and_no_result_of_a_tool(
    form: str, role: str | None, tmp_path: Path
) -> None:
    key, who, text = {"openai": ("messages", "role", "content")}.get(
        form, ("conversations", "from", "value")
    )
    told = [("user", "Is it cheap?"), (role, "A door creaks."), ("assistant", "Yes.")]
    chat = {"id": "c", key: [{who: name, text: said} for name, said in told]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat))
    memory = hs.StepMemory(":memory:", embedder="hashing:2")
    report = import_file(memory, tmp_path / "chat.jsonl", session_id="s")
    assert report.skipped == []
    assert f"message of role {role!r}" in str(report.notes)
    (session,) = memory.sessions()
    repository = memory.repository()
    kept = asyncio.run(repository.get_steps(session.session_id))
    assert [message.content for message in kept] == [said for _, said in told]
    shown = str(hs.ContextBuilder().build(steps=kept).messages)
    assert "A door creaks." in shown
    assert "tool_result" not in shown
