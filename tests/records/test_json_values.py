"""json_value: what JSON cannot hold is repaired, and each repair is named."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pydantic import BaseModel

from hybridagi_steps.records.json_values import MAX_DEPTH, json_value, too_deep


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Point(BaseModel):
    x: int
    when: date


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (float("-inf"), None),
        (2**70, str(2**70)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        ("nul \x00 here", "nul \ufffd here"),
        ("lone \ud800 half", "lone \ufffd half"),
        ((1, 2), [1, 2]),
        ({7}, [7]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"hi"), "aGk="),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, np.nan]), [1.0, None]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (datetime(2025, 1, 2, tzinfo=UTC), "2025-01-02T00:00:00+00:00"),
        (date(2025, 1, 2), "2025-01-02"),
        (UUID(int=1), str(UUID(int=1))),
        (PurePosixPath("a/b"), "a/b"),
        (OrderedDict([("a", 1)]), {"a": 1}),
        (Point(x=1, when=date(2025, 1, 2)), {"x": 1, "when": "2025-01-02"}),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_what_json_cannot_hold_is_repaired_and_named(value: Any, stored: Any) -> None:
    repairs: list[str] = []
    fixed = json_value({"a": [value]}, repairs, "outputs")
    assert fixed == {"a": [stored]}
    assert json.loads(json.dumps(fixed, allow_nan=False)) == fixed
    assert repairs
    assert all(note.startswith("outputs.a[0]") for note in repairs)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**63 - 1,
        1.5,
        "",
        "ünï\n\tcode 🎉",
        [],
        {},
        {"a": [1, {"b": None}]},
    ],
)
def test_a_clean_value_is_returned_as_it_is(value: Any) -> None:
    repairs: list[str] = []
    assert json_value(value, repairs) is value
    assert repairs == []


def test_a_repair_copies_only_what_it_changes() -> None:
    clean = {"deep": [1]}
    value = {"clean": clean, "bad": float("nan")}
    repairs: list[str] = []
    fixed = json_value(value, repairs)
    assert fixed is not value
    assert fixed["clean"] is clean
    assert value["bad"] != value["bad"], "still NaN"


def test_keys_become_text_and_none_is_lost_in_a_collision() -> None:
    repairs: list[str] = []
    fixed = json_value({1: "number", "1": "text", None: "none"}, repairs, "inputs")
    assert sorted(map(str, fixed.values())) == ["none", "number", "text"]
    assert all(isinstance(key, str) for key in fixed)
    assert len(repairs) >= 2
    json.dumps(fixed, allow_nan=False)


def test_bad_text_in_a_key_is_repaired() -> None:
    repairs: list[str] = []
    fixed = json_value({"a\x00": 1, "\ud800": 2}, repairs)
    assert fixed == {"a\ufffd": 1, "\ufffd": 2}
    assert repairs


def _list_in_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def _dict_in_itself() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    return loop


@pytest.mark.parametrize("made", [_list_in_itself, _dict_in_itself])
def test_a_value_that_contains_itself_ends(made: Callable[[], Any]) -> None:
    loop = made()
    repairs: list[str] = []
    json_value({"loop": loop}, repairs)
    assert too_deep({"loop": loop}) is not None


def test_depth_is_measured_from_the_outside() -> None:
    value: Any = "leaf"
    for _ in range(MAX_DEPTH):
        value = [value]
    assert too_deep(value) is None
    assert too_deep([[value]]) is not None


def test_an_object_whose_text_cannot_be_made_does_not_lose_the_rest() -> None:
    repairs: list[str] = []
    fixed = json_value({"good": 1, "bad": Unprintable()}, repairs)
    assert fixed["good"] == 1
    assert "Unprintable" in fixed["bad"]
    assert repairs


def test_an_integer_too_long_for_decimal_text_is_kept_in_hexadecimal() -> None:
    repairs: list[str] = []
    fixed = json_value([2**40_000], repairs)
    assert int(fixed[0], 16) == 2**40_000


@pytest.mark.parametrize("key", [2**40_000, Unprintable()], ids=["huge", "unprintable"])
def test_a_key_whose_text_cannot_be_made_does_not_lose_the_value(key: Any) -> None:
    repairs: list[str] = []
    fixed = json_value({key: "kept"}, repairs)
    assert list(fixed.values()) == ["kept"]
    assert repairs


def test_a_long_text_of_a_foreign_object_is_cut() -> None:
    class Long:
        def __str__(self) -> str:
            return "x" * 100_000

    repairs: list[str] = []
    assert len(json_value(Long(), repairs)) <= 1_000
