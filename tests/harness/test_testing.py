"""The test doubles that the package ships: scripted and replaying language models."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import copy
import enum
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import cloudpickle
import dspy
import pytest
from pydantic import BaseModel, Field, HttpUrl, TypeAdapter

import hybridagi_steps.testing.language_models as language_models
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.testing import (
    ScriptedLM,
    ToolCall,
    asked_fields,
    plausible_reply,
    replay_lm,
    request_text,
    scripted_lm,
)

ADAPTERS = [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()]


class Size(enum.Enum):
    """A closed set."""

    SMALL = "small"
    LARGE = "large"


class Form(dspy.Signature):
    """Fill in a form."""

    text: str = dspy.InputField()
    colour: Literal["red", "blue"] = dspy.OutputField()
    size: Size = dspy.OutputField()
    fits: bool = dspy.OutputField()
    count: int = dspy.OutputField()
    price: float = dspy.OutputField()
    tags: list[str] = dspy.OutputField()
    note: str = dspy.OutputField()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)
def test_a_plausible_answer_fits_any_form_in_one_call(adapter: Any) -> None:
    lm = scripted_lm()
    with dspy.context(lm=lm, adapter=adapter):
        form = dspy.Predict(Form)(text="?")
    assert (form.colour, form.size, form.fits, form.count) == ("red", Size.SMALL, True, 1)
    assert (form.price, form.tags, form.note) == (1.0, [], "some note")
    assert len(lm.requests) == 1


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)
def test_fields_are_rendered_the_way_the_adapter_reads_them(adapter: Any) -> None:
    lm = scripted_lm([{"answer": "first"}, {"answer": "second"}])
    predict = dspy.Predict("question -> answer")
    with dspy.context(lm=lm, adapter=adapter):
        assert [predict(question=q).answer for q in "ab"] == ["first", "second"]


def test_a_script_may_be_a_function_of_the_request() -> None:
    lm = scripted_lm(lambda request: {"answer": str(len(request_text(request)))})
    with dspy.context(lm=lm):
        short = dspy.Predict("question -> answer")(question="a").answer
        long = dspy.Predict("question -> answer")(question="a" * 100).answer
    assert int(long) == int(short) + 99
    assert list(asked_fields(lm.requests[0])) == ["answer"]


def test_a_plain_prompt_gets_plain_text() -> None:
    lm = scripted_lm()
    assert lm("hello") == ["plain text"]
    assert asked_fields(lm.requests[0]) == {}
    assert plausible_reply(lm.requests[0]) == "plain text"


def test_an_error_in_the_script_is_raised_to_the_program() -> None:
    lm = scripted_lm([ValueError("down"), "up"])
    with pytest.raises(Exception, match="down"):
        lm("hello")
    assert lm("hello") == ["up"]


def test_a_script_that_runs_out_says_so() -> None:
    lm = scripted_lm(["one"])
    lm("a")
    with pytest.raises(Exception, match="script has 1 replies"):
        lm("b")


def test_usage_is_counted_and_stable() -> None:
    lm = scripted_lm(["four", "four"])
    lm("x" * 40)
    lm("x" * 40)
    assert [entry["usage"]["prompt_tokens"] for entry in lm.history] == [10, 10]
    assert lm.history[0]["usage"]["completion_tokens"] == 2


def test_delays_hold_sync_and_async(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = scripted_lm(lambda _: "x", delay_seconds=0.1)
    slept: list[float] = []
    monkeypatch.setattr(language_models, "time", SimpleNamespace(sleep=slept.append))
    lm("a")
    assert slept == [0.1]

    async def many() -> list[float]:
        asleep: list[float] = []
        all_asleep = asyncio.Event()

        async def sleep(seconds: float) -> None:
            asleep.append(seconds)
            if len(asleep) == 10:
                all_asleep.set()
            await all_asleep.wait()

        monkeypatch.setattr(language_models, "asyncio", SimpleNamespace(sleep=sleep))
        await asyncio.wait_for(asyncio.gather(*(lm.acall("a") for _ in range(10))), 60)
        return asleep

    assert asyncio.run(many()) == [0.1] * 10, "async answers wait together"


def test_native_tool_calls() -> None:
    lm = scripted_lm([["thinking", ToolCall("search", {"query": "x"}, "id-1")]])
    [output] = lm("hello")
    assert output["text"] == "thinking"
    [call] = output["tool_calls"]
    assert call["function"]["name"] == "search"
    assert call["id"] == "id-1"


def test_streams_come_in_pieces() -> None:
    predict = dspy.Predict("question -> answer")
    listener = dspy.streaming.StreamListener("answer", predict=predict, predict_name="predict")

    async def consume() -> list[Any]:
        stream = dspy.streamify(predict, stream_listeners=[listener], is_async_program=True)
        return [item async for item in stream(question="?")]

    with dspy.context(lm=scripted_lm([{"answer": "a long answer, in pieces"}])):
        *pieces, prediction = asyncio.run(consume())
    assert len(pieces) > 2
    assert "".join(piece.chunk for piece in pieces) == "a long answer, in pieces"
    assert prediction.answer == "a long answer, in pieces"


def test_replies_are_given_once_each_under_threads() -> None:
    lm = scripted_lm([f"reply {n}" for n in range(200)])
    with ThreadPoolExecutor(8) as pool:
        given = [text for [text] in pool.map(lm, ["x"] * 200)]
    assert sorted(given) == sorted(f"reply {n}" for n in range(200))
    assert len(lm.requests) == 200


def test_copies_share_the_script() -> None:
    lm = scripted_lm(["one", "two", "three"])
    assert lm("x") == ["one"]
    assert lm.copy()("x") == ["two"]
    twin = copy.deepcopy(lm)
    assert twin("x") == ["three"]
    assert twin.requests is lm.requests


def test_a_pickled_model_answers_again_from_the_start() -> None:
    lm = scripted_lm(["one", "two"])
    lm("x")
    revived = cloudpickle.loads(cloudpickle.dumps(lm))
    assert isinstance(revived, ScriptedLM)
    assert revived("x") == ["one"]
    assert len(revived.requests) == 1


def test_answers_by_field_come_in_turn_and_the_rest_is_plausible() -> None:
    lm = scripted_lm({"answer": ["Oslo", "Rome"], "sure": False, "none": []})
    predict = dspy.Predict("question -> answer, sure: bool, why")
    with dspy.context(lm=lm):
        said = [predict(question="?") for _ in range(3)]
    assert [each.answer for each in said] == ["Oslo", "Rome", "Oslo"]
    assert (said[0].sure, said[0].why) == (False, "some why")
    revived = cloudpickle.loads(cloudpickle.dumps(lm))
    with dspy.context(lm=revived):
        assert predict(question="?").answer == "Oslo"
    assert scripted_lm({})("anything") == ["plain text"]


def test_replay_gives_the_assistants_turns_with_their_calls() -> None:
    lm = replay_lm(
        [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "function": {"name": "find", "arguments": '{"id": 7}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
            {"role": "assistant", "content": "done"},
        ]
    )
    assert lm("x") == ["hello"]
    [called] = lm("x")
    assert called["tool_calls"][0]["function"]["name"] == "find"
    assert lm("x") == ["done"]
    assert lm.model == "replay/model"


@pytest.mark.parametrize("wrong", [5, "an answer", b"bytes", object()])
def test_what_is_no_script_is_refused_where_the_model_is_made(wrong: Any) -> None:
    with pytest.raises(InvalidSettingError, match="a script is a list of replies"):
        scripted_lm(wrong)


def test_a_field_of_a_script_that_looks_misspelt_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with dspy.context(lm=scripted_lm({"anser": "no", "reasoning": "yes", "plan": "later"})):
        program = dspy.ChainOfThought("question -> answer")
        said = [program(question=question).reasoning for question in ("why?", "how?")]
    assert said == ["yes", "yes"]
    assert [record.getMessage() for record in caplog.records if "script" in record.message] == [
        "'anser' of the script is no field here; is 'answer' meant?"
    ]


class Booking(BaseModel):
    """A model with all that a schema may say."""

    seats: Annotated[int, Field(gt=4)]
    fours: Annotated[int, Field(ge=5, multiple_of=4)]
    below: Annotated[float, Field(le=-2)]
    price: Decimal
    kind: Literal["return", "single"]
    legs: Annotated[list[dict[str, float]], Field(min_length=2)]
    note: Annotated[str, Field(min_length=30, max_length=40)]
    after: Booking | None = None


TYPES: list[Any] = [
    *(int, float, bool, str, Any, list[int], set[int], tuple[int, str], dict[str, int]),
    *(int | None, None | list[str], int | str, date, datetime, time, Decimal, UUID, HttpUrl),
    *(Booking, list[Booking], Booking | None, Literal["a", "b"]),
]


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_an_answer_without_a_script_has_the_form_that_is_asked_for(kind: Any, adapter: Any) -> None:
    signature: Any = dspy.Signature(
        {"q": (str, dspy.InputField()), "a": (kind, dspy.OutputField())}
    )
    with dspy.context(lm=scripted_lm(), adapter=adapter()):
        given = dspy.Predict(signature)(q="which?").a
    assert TypeAdapter(kind).validate_python(given) == given
