"""The double refuses what providers refuse; a check that passes everything would prove nothing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from provider_double import RefusedError, check_anthropic, check_openai

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USER: dict[str, Any] = {"role": "user", "content": "Look."}
ASKS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SEEN: dict[str, Any] = {"role": "tool", "content": "seen", "tool_call_id": "c1"}
SAYS: dict[str, Any] = {"role": "assistant", "content": "Done."}

USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}
THEN = {"type": "text", "text": "And?"}
A_ASKS: dict[str, Any] = {"role": "assistant", "content": [USE]}
A_SEEN: dict[str, Any] = {"role": "user", "content": [RESULT, THEN]}


def with_call(**function: Any) -> dict[str, Any]:
    return {**ASKS, "tool_calls": [{**CALL, "function": {**CALL["function"], **function}}]}  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]


OPENAI_REFUSES: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "a call without an answer": [USER, ASKS],
    "a call answered too late": [USER, ASKS, USER, SEEN],
    "an answer without a call": [USER, SEEN],
    "two answers": [USER, ASKS, SEEN, SEEN],
    "another call's answer": [USER, ASKS, {**SEEN, "tool_call_id": "c2"}],
    "an id used twice": [USER, ASKS, SEEN, ASKS, SEEN],
    "a call twice in one message": [USER, {**ASKS, "tool_calls": [CALL, CALL]}, SEEN, SEEN],
    "no calls": [USER, {**ASKS, "tool_calls": []}],
    "a name with a blank": [USER, with_call(name="look at"), SEEN],
    "arguments that are no JSON": [USER, with_call(arguments="{"), SEEN],
    "arguments that are no object": [USER, with_call(arguments="[]"), SEEN],
    "blank content": [USER, {**SAYS, "content": " \n"}],
    "no content": [{**USER, "content": None}],
    "an empty part": [{**USER, "content": [{"type": "text", "text": ""}]}],
    "a foreign part": [{**USER, "content": [{"type": "tool_result"}]}],
    "an unknown role": [{**USER, "role": "robot"}],
    "an unknown key": [{**USER, "metadata": {}}],
    "system in the middle": [USER, {"role": "system", "content": "x"}],
    "an assistant at the beginning": [SAYS, USER],
}

ANTHROPIC_REFUSES: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "an assistant at the beginning": [SAYS],
    "two users": [USER, USER],
    "a call without an answer": [USER, A_ASKS],
    "text instead of an answer": [USER, A_ASKS, USER],
    "an answer after text": [USER, A_ASKS, {**A_SEEN, "content": [THEN, RESULT]}],
    "an answer without a call": [A_SEEN],
    "two answers": [USER, A_ASKS, {**A_SEEN, "content": [RESULT, RESULT]}],
    "an id used twice": [USER, A_ASKS, A_SEEN, A_ASKS, A_SEEN],
    "white space at the end": [USER, {**SAYS, "content": "Done. "}],
    "blank text": [{**USER, "content": " "}],
    "no blocks": [{**USER, "content": []}],
    "a tool message": [USER, A_ASKS, SEEN],
    "OpenAI's calls": [USER, ASKS],
    "an input that is no object": [USER, {**A_ASKS, "content": [{**USE, "input": "x"}]}, A_SEEN],
}


def test_sound_conversations_pass() -> None:
    openai = [{"role": "system", "content": "Be kind."}, USER, ASKS, SEEN, SAYS, USER]
    anthropic = [USER, A_ASKS, A_SEEN, SAYS]
    before = deepcopy((openai, anthropic))
    check_openai(openai)
    check_anthropic("Be kind.", anthropic)
    assert (openai, anthropic) == before


@pytest.mark.parametrize("fault", OPENAI_REFUSES)
def test_openai_refuses(fault: str) -> None:
    with pytest.raises(RefusedError):
        check_openai(OPENAI_REFUSES[fault])


@pytest.mark.parametrize("fault", ANTHROPIC_REFUSES)
def test_anthropic_refuses(fault: str) -> None:
    with pytest.raises(RefusedError):
        check_anthropic(None, ANTHROPIC_REFUSES[fault])


def test_anthropic_refuses_a_blank_system_prompt() -> None:
    with pytest.raises(RefusedError):
        check_anthropic(" ", [USER])
