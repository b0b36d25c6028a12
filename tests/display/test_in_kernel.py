"""In a kernel of Jupyter a listing is text where text is asked for, and is drawn once as HTML."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

import hybridagi_steps as hs

SETUP = """
import logging, dspy, hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm
memory = hs.StepMemory(":memory:", embedder="hashing")
with dspy.context(lm=scripted_lm([{"answer": "a refund in ten days"}])):
    with hs.record(memory, keep_prompts=True) as run:
        dspy.Predict("question -> answer")(question="refund?")
"""
LISTINGS = [
    "memory.search('refund')",
    "memory.runs()",
    "memory.find()",
    "memory.prompt_of(memory.find().steps[0].id)",
]


def outputs_of(*cells: str) -> list[list[Any]]:
    """Run cells in a kernel; return the outputs of each."""
    nbformat = pytest.importorskip("nbformat", reason="no kernel here: the extra `docs` brings one")
    nbclient = pytest.importorskip("nbclient", reason="no kernel here: the extra `docs` brings one")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell["outputs"] for cell in notebook.cells]


def as_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)


@pytest.mark.enable_socket
def test_a_kernel_gets_texts_where_it_asks_for_texts_and_draws_a_listing_once() -> None:
    texts = [f"'%s %s' % (str({each}), format({each}))" for each in LISTINGS]
    logged = "logging.warning('found %s', memory.search('refund'))"
    _, *shown, log = outputs_of(SETUP, *texts, *LISTINGS, logged)
    for outputs in shown[: len(texts)]:
        assert [each["output_type"] for each in outputs] == ["execute_result"]
        assert outputs[0]["data"]["text/plain"].count("refund") >= 2
    for outputs in shown[len(texts) :]:
        assert [each["output_type"] for each in outputs] == ["execute_result"]
        assert "<div" in outputs[0]["data"]["text/html"]
        assert len(outputs[0]["data"]["text/plain"]) > 20
    assert "refund" in log[0]["text"]


def test_texts_stay_texts_where_rich_finds_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_in_a_notebook(monkeypatch)
    with hs.StepMemory(":memory:") as memory:
        step = {"inputs": {"tool": "refund"}, "step_type": "Action", "run_id": "a"}
        memory.add(hs.AgentStep.model_validate(step))
        for listing in (memory.search("refund"), memory.runs(), memory.find()):
            assert "refund" in str(listing)
    assert capsys.readouterr().out == ""


def test_texts_have_no_colours_where_a_terminal_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with hs.StepMemory(":memory:") as memory:
        memory.add(hs.AgentStep(inputs={"tool": "refund"}, step_type=hs.AgentStepType.Action))
        assert "\x1b" not in str(memory.find())
