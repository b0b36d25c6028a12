"""`python -m tests.benchmarks`: its commands are the measurements, their options explained."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from hybridagi_steps.cli import BAD_INPUT, main
from tests.benchmarks import lexical
from tests.benchmarks.__main__ import app


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["quality", "--frobs", "3"], "--frobs"),
        (["write", "--frobs", "3"], "--frobs"),
        (["search", "--frobs", "3"], "--frobs"),
        (["recorder", "--rounds", "many"], "--rounds"),
        (["recorder", "--peers", "nobody"], "begins with 'nobody'"),
        (["search", "--sizes", "many"], "'many' is no list of numbers"),
        (["write", "--loops", "0"], "'0' is no list of numbers"),
        (["quality", "--half", "whole"], "--half"),
        (["learning", "--runs", "mine.jsonl"], "beside steps.jsonl"),
        (["lexical", "--rounds"], "requires an argument"),
        (["scaling", "--peers", "nobody"], "begins with 'nobody'"),
        (["turns", "--lengths", "0"], "'0' is no list of numbers"),
        (["nothing"], "nothing"),
    ],
)
def test_bad_options_are_named_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, app) == BAD_INPUT
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["write", "search", "scaling", "turns", "recorder", "quality", "learning", "readme"]
)
def test_the_help_of_a_measurement_explains_its_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"], app) == 0
    shown = capsys.readouterr().out
    measure = import_module(f"tests.benchmarks.{name}").measure
    for option in inspect.signature(measure).parameters:
        line = re.search(rf"  --{option.replace('_', '-')}\b.*?  +(\w.*)", shown)
        assert line, f"--{option} is not explained in:\n{shown}"


def test_options_are_those_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def report(**options: Any) -> None:
        asked.update(options)

    monkeypatch.setattr(lexical, "report", report)
    assert main(["lexical", "--rounds", "7", "--sizes", "10,20", "--json"], app) == 0
    given = {"json_output": True, "rounds": 7, "sizes": "10,20"}
    assert asked == {"peers": "all", "workdir": None, **given}
