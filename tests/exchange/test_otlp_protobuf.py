"""Spans in protobuf become the steps that the same spans in JSON become."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import Shelf

from hybridagi_steps.errors import ExchangeError, MissingExtraError
from hybridagi_steps.exchange import import_file

SAMPLES = Path(__file__).parents[1] / "samples"
REQUEST = (SAMPLES / "openinference_dspy.pb").read_bytes()


def install() -> None:
    pytest.importorskip("opentelemetry.proto", reason="the extra otel is not installed")


def steps(path: Path) -> dict[str, Any]:
    shelf = Shelf()
    report = import_file(shelf, path)
    assert (report.skipped, report.notes) == ([], ())
    return {
        key: (step.step_type, step.inputs, step.outputs, step.parent_id, step.session_id)
        for key, step in shelf.steps.items()
    }


def test_protobuf_says_what_json_says(tmp_path: Path) -> None:
    install()
    read = steps(SAMPLES / "openinference_dspy.pb")
    assert len(read) == 27
    assert read == steps(SAMPLES / "openinference_dspy.jsonl")
    several = tmp_path / "collector.binpb"
    several.write_bytes((len(REQUEST).to_bytes(4) + REQUEST) * 2)
    assert steps(several) == read


def test_what_protobuf_cannot_read_is_named(tmp_path: Path) -> None:
    install()
    cut, shelf = tmp_path / "cut.pb", Shelf()
    cut.write_bytes(REQUEST[:-100])
    with pytest.raises(ExchangeError, match="no protobuf of spans"):
        import_file(shelf, cut)
    assert not shelf.steps
    cut.write_bytes(len(REQUEST).to_bytes(4) + REQUEST + len(REQUEST).to_bytes(4) + REQUEST[:-100])
    report = import_file(shelf, cut)
    assert report.added == 27
    [(number, reason)] = report.skipped
    assert (number, reason[:20]) == (2, "no protobuf of spans")


def test_json_may_begin_with_a_new_line(tmp_path: Path) -> None:
    file, shelf = tmp_path / "steps.json", Shelf()
    file.write_text('\n{\n"step_type": "Action", "inputs": {"purpose": "Søk"}}', "utf-8")
    assert import_file(shelf, file).added == 1


def test_without_the_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto", None)
    monkeypatch.setitem(
        sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None
    )
    with pytest.raises(MissingExtraError, match="otel"):
        import_file(Shelf(), SAMPLES / "openinference_dspy.pb")
