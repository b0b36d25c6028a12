"""The body of a step: shorter than the step, and read back as it was, whoever wrote it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from conformance.samples import ids, step
from hypothesis import given
from hypothesis import strategies as st
from store_files import made_old

from hybridagi_steps import AgentStep
from hybridagi_steps.messages.conversation import Conversation, conversation_steps
from hybridagi_steps.messages.turns import openai_turns
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.body import decode_body, encode_body
from hybridagi_steps.stores.sqlite import SqliteStepStore

ASKED = "Please refund the order 4711, which came broken and two weeks late. " * 3
ANSWER = "The order 4711 is refunded; the money is with your bank in three days. " * 3
CHAT = [
    {"role": "user", "content": [{"type": "text", "text": ASKED}]},
    {"role": "assistant", "content": ANSWER, "usage": {"total": 3}},
]
TEXTS = st.sampled_from([ASKED, ANSWER, "purpose", "result", "=", ""])
VALUES = st.recursive(
    TEXTS | st.integers(0, 2) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def chat_steps() -> list[AgentStep]:
    conversation = Conversation(openai_turns(CHAT), key="one")
    return [made for made, _ in conversation_steps(conversation)]


def fields_of(made: AgentStep) -> dict[str, Any]:
    return {**vars(made), **(made.model_extra or {})}


@given(
    messages=VALUES,
    arguments=VALUES,
    more=st.dictionaries(st.sampled_from(["=", "other"]), VALUES),
    status=st.sampled_from(["ok", "error", None]),
)
def test_any_step_is_read_as_it_was_written(
    messages: Any, arguments: Any, more: dict[str, Any], status: Any
) -> None:
    given = step(inputs={"purpose": ASKED, "arguments": arguments}, outputs={"result": ANSWER})
    given.status = status
    (given.model_extra or {}).update(more, messages=messages)
    assert fields_of(decode_body(encode_body(given))) == fields_of(given)


def test_what_an_imported_step_repeats_is_written_once() -> None:
    steps = chat_steps()
    for made in steps:
        body = encode_body(made)
        assert fields_of(decode_body(body)) == fields_of(made)
        assert max(body.count(ASKED), body.count(ANSWER)) == 1
    assert steps[0].model_extra == {"messages": CHAT[:1]}


def test_bodies_of_earlier_versions_are_read_as_they_are() -> None:
    for made in chat_steps():
        before = orjson.dumps(made.model_dump(mode="json", exclude={"vector"}, exclude_none=True))
        assert orjson.loads(before)["status"] == "ok"
        assert fields_of(decode_body(before)) == fields_of(made)


@pytest.mark.parametrize("kept_up", [False, True])
def test_a_status_that_is_not_written_is_found(tmp_path: Path, kept_up: bool) -> None:
    store = SqliteStepStore(tmp_path / "steps.db", durability="normal")
    store.append([step(id="fine"), step(id="failed", status="error")])
    assert '"status"' not in encode_body(step())
    if kept_up:
        store.append([step(id=f"{n}", status="partial") for n in range(99)])
    for status in ("ok", "error"):
        where = StepFilter.of({"status": [status]})
        assert ids(store.find(where, limit=9)) == [{"ok": "fine", "error": "failed"}[status]]
    assert store.verify() == []
    store.close()


def test_a_file_of_the_schema_before_opens_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append([step(id="old"), step(id="failed", status="error")])
    made_old(path, 9)
    with closing(sqlite3.connect(path)) as connection, connection:
        written = "UPDATE agent_step SET body = json_set(body, '$.status', 'ok'), checksum = NULL"
        connection.execute(f"{written} WHERE id = 'old'")
        assert connection.execute("SELECT status FROM step_view").fetchall() == [
            ("ok",),
            ("error",),
        ]
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append([step(id="new")])
        assert ids(store.find(StepFilter.of({"status": ["ok"]}), limit=9)) == ["old", "new"]
        assert store.verify() == []
