"""How a message is written and read back: what pydantic would make of it, only sooner."""

from __future__ import annotations

import pickle

from hybridagi_steps import MessageRole, Step, StepMetrics
from hybridagi_steps.stores.body import Written, decode_message, encode_message

MESSAGE = Step(
    session_id="s",
    sequence=3,
    role=MessageRole.ASSISTANT,
    content="Done.",
    tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    metadata={"n": [1, 2]},
    metrics=StepMetrics(input_tokens=3),
)


def read_back(written: Written) -> Step:
    """Read it at the place of MESSAGE."""
    return decode_message(written, MESSAGE.id, "s", 3)


def test_it_comes_back_as_it_was() -> None:
    found = read_back(encode_message(MESSAGE))
    assert found == MESSAGE
    assert found.model_dump_json() == MESSAGE.model_dump_json()


def test_it_is_a_model_like_any_other() -> None:
    found = read_back(encode_message(MESSAGE))
    constructed = Step.model_construct(_fields_set=found.model_fields_set, **vars(found))
    assert found == constructed
    assert set(vars(found)) == set(Step.model_fields)
    changed = found.model_copy(update={"content": "Never."}, deep=True)
    assert (changed.content, found.content) == ("Never.", "Done.")
    assert pickle.loads(pickle.dumps(found)) == MESSAGE
    found.name = "agent"
    assert found.to_message_dict()["name"] == "agent"


def test_messages_share_nothing() -> None:
    written = encode_message(MESSAGE)
    first, second = read_back(written), read_back(written)
    assert first.metadata is not None
    first.metadata["n"] = 0
    first.reasoning_content = "hm"
    assert second == MESSAGE


def test_a_field_from_a_later_version_is_passed_over() -> None:
    written = encode_message(MESSAGE)
    assert isinstance(written.body, str)
    later = written._replace(body='{"mood": 1, ' + written.body[1:])
    assert read_back(later) == MESSAGE
