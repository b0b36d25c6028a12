"""The predictor that made a step: stored, found by, shown and moved, whatever the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.samples import step

import hybridagi_steps as hs
from hybridagi_steps.cli import main
from hybridagi_steps.exchange import export_file, import_file

MADE = {"plan": "agent.plan", "act": "agent.act", "again": "agent.act", "none": None}
NUL = {"purpose": "refund", "result": 'a\x00b, \\u0000, \\\x00 and "predictor":"agent.plan"'}


@pytest.fixture(params=["file", "memory", "postgres"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hs.StepMemory]:
    address: Any = {"file": tmp_path / "steps.db", "memory": ":memory:"}.get(request.param)
    if address is None:
        address = request.getfixturevalue("postgres_address")
    with hs.StepMemory(address, embedder="hashing") as opened:
        yield opened


@pytest.fixture
def filled(memory: hs.StepMemory) -> hs.StepMemory:
    """Steps of three predictors and of none."""
    shapes = dict.fromkeys(MADE.values(), "0123456789ab") | {None: None}
    memory.add(
        refund(id=name, predictor=made, signature=shapes[made], run_id="r")
        for name, made in MADE.items()
    )
    return memory


def refund(**fields: Any) -> hs.AgentStep:
    """A step with words of its own: a search shows one of those that say the same."""
    return step(inputs={"purpose": f"refund ticket {fields['id']}"}, **fields)


def both(memory: hs.StepMemory, **where: Any) -> set[str]:
    """Ids of what passes a filter, in a listing and in a search."""
    listed = {str(each.id) for each in memory.find(where).steps}
    found = memory.search("refund ticket", 9, where=where)
    assert {str(hit.step.id) for hit in found} == listed
    return listed


def test_it_comes_back_as_it_was_stored(filled: hs.StepMemory) -> None:
    assert {str(each.id): each.predictor for each in filled.iter_steps()} == MADE


def test_one_several_and_unknown_ones(filled: hs.StepMemory) -> None:
    assert both(filled, predictors="agent.act") == {"act", "again"}
    assert both(filled, predictors=["agent.act", "agent.plan"]) == {"act", "again", "plan"}
    assert both(filled, predictors=["agent"]) == both(filled, predictors=[]) == set()
    assert both(filled, predictors="\ud800") == set()
    assert both(filled, predictors="agent.act", run_id="r") == {"act", "again"}
    assert both(filled, predictors="agent.act", run_id="q") == set()
    assert both(filled, signatures="0123456789ab") == {"plan", "act", "again"}
    assert both(filled, signatures="0123456789ab", predictors="agent.plan") == {"plan"}
    assert both(filled, signatures="ba9876543210") == set()


def test_it_follows_what_happens_to_steps(filled: hs.StepMemory) -> None:
    assert both(filled, predictors="agent.act") == {"act", "again"}
    filled.add(refund(id="late", predictor="agent.act"))
    filled.update(refund(id="again"))
    assert both(filled, predictors="agent.act") == {"act", "late"}
    filled.purge({"predictors": "agent.act"})
    assert {str(each.id) for each in filled.iter_steps()} == {"plan", "again", "none"}


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "sub\x1astitute", "'; --", "ключ", "%?"])
def test_a_name_is_only_data(memory: hs.StepMemory, name: str) -> None:
    memory.add([step(id="a", predictor=name, inputs=NUL), step(id="b", inputs=NUL)])
    assert both(memory, predictors=[name]) == {"a"}
    assert both(memory, predictors=["agent.plan"]) == set()


@pytest.mark.parametrize("name", ["", "x" * 129, "nu\x00l", "\ud800"])
def test_a_name_that_cannot_be_compared_is_refused(memory: hs.StepMemory, name: str) -> None:
    with pytest.raises(hs.errors.InvalidStepError, match="predictor"):
        memory.add(step(predictor=name))
    assert memory.stats()["steps"] == 0


def test_revoking_by_it_hides_what_it_made(filled: hs.StepMemory) -> None:
    filled.revoke({"predictors": "agent.act"})
    assert both(filled) == {"plan", "none"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_files_carry_it(filled: hs.StepMemory, tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    path = tmp_path / f"out.{suffix}"
    assert export_file(filled, path, where={"predictors": "agent.act"}) == 2
    with hs.StepMemory(tmp_path / "copy.db", embedder="hashing") as copy:
        import_file(copy, path)
        assert both(copy, predictors="agent.act", scope="*") == {"act", "again"}


def test_a_file_of_an_earlier_version_is_read(memory: hs.StepMemory, tmp_path: Path) -> None:
    fields = step(id="old").model_dump(mode="json", exclude={"predictor", "signature", "vector"})
    (tmp_path / "old.jsonl").write_text(json.dumps(fields))
    assert import_file(memory, tmp_path / "old.jsonl").added == 1
    [old] = memory.get("old").steps
    assert (old.predictor, old.signature) == (None, None)


def test_the_command_line_finds_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "steps.db")
    with hs.StepMemory(db, embedder="hashing") as memory:
        memory.add([step(id=name, predictor=made) for name, made in MADE.items()])
    assert main(["export", "--db", db, "--predictor", "agent.plan", "--predictor", "other"]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["plan"]


def test_http_finds_by_it(filled: hs.StepMemory) -> None:
    pytest.importorskip("fastapi", reason="the server needs the extra `server`")
    from server_cases import serving

    with serving(filled) as served:
        asked = {"q": "refund", "predictors": ["agent.plan", "other"]}
        (hit,) = served.client.get("/search", params=asked).json()["hits"]
        assert (hit["step"]["id"], hit["step"]["predictor"]) == ("plan", "agent.plan")


def test_mcp_finds_by_it(filled: hs.StepMemory) -> None:
    pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
    from hybridagi_steps.server.mcp_server import create_mcp_server

    asked = {"query": "refund", "where": {"predictors": "agent.plan"}}
    result: Any = asyncio.run(create_mcp_server(filled).call_tool("search_steps", asked))
    [_, found] = result.content[0].text.splitlines()
    assert "step plan, run r: " in found
