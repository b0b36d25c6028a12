"""Values that JSON cannot say are recorded as a few words, without where they lay in memory."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import dataclasses
import functools
import io
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import dspy
import numpy as np
import pytest
from PIL import Image

import hybridagi_steps as hs


@dataclasses.dataclass
class Screen:
    """A record that holds a picture."""

    name: str
    picture: Any


class Window:
    """An object that Python describes by where it lies."""


def picture() -> Image.Image:
    return Image.new("RGB", (4, 4))


VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "picture": (picture, "<PIL.Image.Image image mode=RGB size=4x4>"),
    "pictures": (lambda: [picture(), picture()], "image mode=RGB"),
    "dataclass": (lambda: Screen("home", picture()), '"name": "home"'),
    "dspy image": (lambda: dspy.Image(picture()), "<image of "),
    "array": (lambda: np.zeros((30, 40)), "<ndarray of shape (30, 40)>"),
    "objects in an array": (lambda: np.array([Window(), None]), "Window"),
    "bytes": (lambda: b"\x00" * 5_000, "<5,000 bytes>"),
    "object": (Window, "<Window>"),
    "key": (lambda: {Window(): 1}, "Window"),
    "method": (lambda: Window().__init__, "function"),
    "partial": (lambda: functools.partial(picture), "partial"),
    "stream": (lambda: io.BytesIO(b"x"), "BytesIO"),
    "generator": (lambda: (n for n in range(3)), "generator"),
    "lock": (threading.Lock, "lock"),
    "set": (lambda: {Window()}, "Window"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_recorded_in_few_words_without_its_address(
    memory: hs.StepMemory, name: str
) -> None:
    make, words = VALUES[name]
    seen: list[Any] = []

    @hs.record_step
    def look(x: Any) -> Any:
        seen.append(x)
        return x

    with hs.record(memory) as run:
        returned = look(make())
    [step] = run.steps
    assert returned is seen[0]
    assert run.errors == []
    for field in (step.inputs, step.outputs):
        text = json.dumps(field)
        assert words in text
        assert not re.search(r"0x[0-9a-fA-F]{4,}", text)
        assert len(text) < 500
    if name not in ("method", "key"):
        assert step.metadata is not None
        assert step.metadata["truncated"]


def test_a_text_of_the_user_keeps_what_reads_like_an_address(memory: hs.StepMemory) -> None:
    text = "segmentation fault at 0x7f12ab34cd56"

    @hs.record_step
    def look(x: str) -> str:
        return x

    with hs.record(memory) as run:
        look(text)
    assert run.steps[0].arguments["x"] == text


def test_a_step_made_by_hand_has_no_address_either(memory: hs.StepMemory) -> None:
    inputs = {"purpose": "look", "x": picture()}
    memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, inputs=inputs))
    [step] = memory.find()
    assert (step.inputs or {})["x"] == "<PIL.Image.Image image mode=RGB size=4x4>"
