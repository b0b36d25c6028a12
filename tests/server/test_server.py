"""The HTTP service: every route, who may use it, and what bad input gets."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

from server_cases import MESSAGES, TOKEN, Served, echo, problem, serving

from hybridagi_steps import AgentStep, Step, StepFilter, StepMemory, errors
from hybridagi_steps.records.store_values import RunSummary
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import STATUS, status_of
from hybridagi_steps.server.routes.search import SearchAsked
from hybridagi_steps.server.tokens import Caller, TokenScope


class TestSessions:
    def test_they_are_listed_in_pages(self, served: Served, filled: StepMemory) -> None:
        for name in ("b", "c"):
            asyncio.run(filled.repository().append(name, MESSAGES[:1]))
        first = served.client.get("/sessions", params={"limit": 2}).json()
        assert [session["session_id"] for session in first["sessions"]] == ["c", "b"]
        last = served.client.get("/sessions", params={"limit": 2, "offset": first["next_offset"]})
        (talk,) = last.json()["sessions"]
        assert "next_offset" not in last.json()
        assert (talk["session_id"], talk["messages"]) == ("talk", 4)
        assert talk["first_message"] == "How do I refund a ticket?"
        assert "forked_from" not in talk

    def test_messages_are_read_whole_in_part_and_one(self, served: Served) -> None:
        whole = served.client.get("/sessions/talk/steps").json()
        assert [step["sequence"] for step in whole["steps"]] == [1, 2, 3, 4]
        assert [step["content"] for step in whole["steps"]] == [m["content"] for m in MESSAGES]
        assert None not in whole["steps"][0].values()
        part = served.client.get("/sessions/talk/steps", params={"start_seq": 2, "end_seq": 3})
        assert part.json() == {"steps": whole["steps"][1:3]}
        one = served.client.get("/sessions/talk/steps/3")
        assert one.json() == whole["steps"][2]
        Step.model_validate(one.json())

    def test_long_ones_are_read_page_by_page(self, served: Served) -> None:
        seen: list[int] = []
        start: int | None = 1
        while start is not None:
            page = served.client.get(
                "/sessions/talk/steps", params={"start_seq": start, "limit": 3}
            ).json()
            seen += [step["sequence"] for step in page["steps"]]
            start = page.get("next_seq")
        assert seen == [1, 2, 3, 4]
        exact = served.client.get("/sessions/talk/steps", params={"end_seq": 2, "limit": 2})
        assert "next_seq" not in exact.json()

    def test_a_fork_shares_what_came_before(self, served: Served) -> None:
        made = served.client.post("/sessions/talk/fork", json={"sequence": 2}).json()
        steps = served.client.get(f"/sessions/{made['new_session_id']}/steps").json()["steps"]
        assert [step["sequence"] for step in steps] == [1, 2]
        listed = served.client.get("/sessions").json()["sessions"]
        (fork,) = [one for one in listed if one["session_id"] == made["new_session_id"]]
        assert (fork["forked_from"], fork["forked_at"]) == ("talk", 2)
        named = {"sequence": 1, "new_session_id": "mine"}
        assert served.client.post("/sessions/talk/fork", json=named).status_code == 200
        problem(served.client.post("/sessions/talk/fork", json=named), 409)

    def test_a_branch_that_is_not_there_is_named(self, still: Served) -> None:
        whose = {"branch_a": 1, "branch_b": 98}
        found = problem(still.client.get("/sessions/talk/compare", params=whose), 404)
        assert "branch 98" in found["detail"]
        assert found["error"] == "UnknownBranchError"

    def test_what_is_deleted_is_hidden_and_stays_an_attempt(self, served: Served) -> None:
        done = served.client.delete("/sessions/talk/steps", params={"start_seq": 3})
        assert done.json() == {"deleted": 2}
        assert len(served.client.get("/sessions/talk/steps").json()["steps"]) == 2
        attempts = served.client.get("/sessions/talk/attempts").json()["attempts"]
        assert [attempt["current"] for attempt in attempts] == [False, True]
        ids = [attempt["branch_id"] for attempt in attempts]
        both = served.client.get(
            "/sessions/talk/compare", params={"branch_a": ids[0], "branch_b": ids[1]}
        ).json()
        assert both["shared"] == 2
        assert [step["sequence"] for step in both["a"]["messages"]] == [3, 4]
        assert both["b"] == {"messages": []}

    def test_the_context_comes_with_its_receipt(self, served: Served) -> None:
        found = served.client.get("/sessions/talk/context", params={"budget": 2000}).json()
        receipt = found["receipt"]
        assert found["messages"][-1] == MESSAGES[-1]
        assert receipt["tokens"] == sum(entry["tokens"] for entry in receipt["kept"])
        assert receipt["budget"] == 2000
        assert receipt["counter_id"]
        tight = served.client.get("/sessions/talk/context", params={"budget": 1})
        assert problem(tight, 422)["error"] == "ContextBudgetError"

    @pytest.mark.parametrize(
        "session_id", ["a/b", "a/steps", "ü ✓", "%2e", "steps/5", "a\nb", "?#"]
    )
    def test_any_id_works(self, served: Served, filled: StepMemory, session_id: str) -> None:
        asyncio.run(filled.repository().append(session_id, MESSAGES[:1]))
        path = f"/sessions/{quote(session_id, safe='')}"
        steps = served.client.get(f"{path}/steps").json()["steps"]
        assert [step["session_id"] for step in steps] == [session_id]
        assert served.client.get(f"{path}/steps/1").json()["sequence"] == 1
        assert served.client.post(f"{path}/fork", json={"sequence": 1}).status_code == 200


class TestErasedElsewhere:
    def test_what_another_process_erases_is_not_told_from_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "steps.db"
        with StepMemory(path, embedder="hashing") as memory, serving(memory, echo) as served:
            kept, gone = (served.chat(name, f"my word is {name}")[0] for name in ("kept", "gone"))
            for run in (kept, gone):
                assert "my word is" in str(served.events(run.data["run_id"]))
            command = [sys.executable, "-m", "hybridagi_steps", "purge", "--db", str(path), "--yes"]
            subprocess.run([*command, "--session", "gone"], check=True, capture_output=True)
            told = served.client.get(f"/runs/{gone.data['run_id']}/events")
            assert told.status_code == 404, told.text
            assert "my word is kept" in str(served.events(kept.data["run_id"]))


class TestSearch:
    def test_words_find_steps_without_their_vectors(self, still: Served) -> None:
        found = still.client.get("/search", params={"q": "refund ticket", "k": 2})
        hits = found.json()["hits"]
        assert {hit["step"]["id"] for hit in hits} == {"call", "act"}
        assert all(0 <= hit["score"] <= 1 and hit["why"] for hit in hits)
        assert "vector" not in found.text

    def test_like_finds_others_than_the_step_itself(self, still: Served) -> None:
        hits = still.client.get("/search", params={"like": "act"}).json()["hits"]
        assert "act" not in {hit["step"]["id"] for hit in hits}
        assert "call" in {hit["step"]["id"] for hit in hits}
        problem(still.client.get("/search", params={"like": "nobody"}), 404)

    def test_like_takes_the_id_of_a_message_and_tells_another_user_nothing(
        self, still: Served
    ) -> None:
        asked = {"q": "refund", "kinds": "message"}
        hit = still.client.get("/search", params=asked).json()["hits"][0]
        like = {"like": hit["step"]["id"]}
        hits = still.client.get("/search", params=like).json()["hits"]
        assert hits
        assert hit["step"]["id"] not in [other["step"]["id"] for other in hits]
        problem(still.client.get("/search", params={**like, "user_id": "mallory"}), 404)

    def test_an_aim_is_passed_on_and_needs_its_state(self, still: Served) -> None:
        asked = {"q": "refund ticket", "aim": "tool"}
        hits = still.client.get("/search", params=asked).json()["hits"]
        assert "tool_words" in {name for hit in hits for name in hit["parts"]}
        refused = still.client.get("/search", params={**asked, "aim": "next"})
        assert "QueryWithSteps" in problem(refused, 422)["detail"]

    @pytest.mark.parametrize(
        "where",
        [
            {"step_types": "Action"},
            {"step_types": ["Action", "Decision"]},
            {"tools": "refund"},
            {"metadata": '{"topic": "refunds"}'},
            {"run_id": "run-1", "step_types": "Action"},
            {"step_types": "Action", "since": "2020-01-01", "until": "2999-01-01T00:00:00Z"},
            {"status": "ok", "tools": ["refund", "other"], "mode": "lexical"},
        ],
    )
    def test_every_condition_narrows(self, still: Served, where: dict[str, Any]) -> None:
        found = still.client.get("/search", params={"q": "refund the ticket", **where}).json()
        assert [hit["step"]["id"] for hit in found["hits"]] == ["act"]

    def test_a_time_without_a_zone_is_utc(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            asked = SearchAsked.model_validate({"q": "x", "since": "2026-01-31T12:00"})
            where = asked.where(Caller(frozenset({TokenScope.ADMIN})))
            assert where.since == datetime(2026, 1, 31, 12, tzinfo=UTC)
        time.tzset()

    def test_it_offers_every_key_of_a_filter(self) -> None:
        assert set(StepFilter.model_fields) <= set(SearchAsked.model_fields)
        page = Path(shapes.__file__).parent / "static"
        known = "".join(
            (page / name).read_text("utf-8") for name in ("shared.js", "views/search.js")
        )
        assert [name for name in StepFilter.model_fields if name not in known] == []

    def test_what_is_excluded_is_not_found(self, still: Served) -> None:
        def ids(*exclude: object) -> set[str]:
            asked = {
                "q": "refund",
                "k": 50,
                "exclude": [orjson.dumps(each).decode() for each in exclude],
            }
            answer = still.client.get("/search", params=asked)
            assert answer.status_code == 200, answer.text
            return {hit["step"]["id"] for hit in answer.json()["hits"]}

        calls = ids({"step_types": ["Action"]}, {"step_types": "ProgramEnd"})
        assert calls
        assert calls < ids()
        assert ids({"since": "1970-01-01"}) == set()

    def test_metadata_are_compared_and_filters_are_alternatives(self, still: Served) -> None:
        def found(**asked: str | list[str]) -> set[str]:
            answer = still.client.get("/search", params={"q": "refund", "k": "50", **asked})
            assert answer.status_code == 200, answer.text
            return {hit["step"]["id"] for hit in answer.json()["hits"]}

        types = [{"step_types": "ProgramCall"}, {"step_types": ["ProgramEnd"]}]
        either = found(any_of=[orjson.dumps(each).decode() for each in types])
        assert either == found(step_types=["ProgramCall", "ProgramEnd"]) != set()
        none = {"nothing": {"gte": 3, "lt": 9}, "other": ["a", "b"]}
        assert found(metadata=orjson.dumps(none).decode()) == set()
        odd = still.client.get("/search", params={"q": "x", "metadata": '{"price": {"$gte": 3}}'})
        assert "unknown operator '$gte' for 'price'" in problem(odd, 422)["detail"]

    def test_a_filter_that_matches_nothing_finds_nothing(self, still: Served) -> None:
        for where in ({"session_id": "none"}, {"user_id": "u"}, {"program": "Other"}):
            answer = still.client.get("/search", params={"q": "refund", **where})
            assert answer.json() == {"hits": [], "titles": {}}

    @pytest.mark.parametrize(
        ("asked", "field"),
        [
            ({"q": "x", "tool": "refund"}, "query.tool"),
            ({"q": "x", "k": "0"}, "query.k"),
            ({"q": "x", "mode": "magic"}, "query.mode"),
            ({"q": "x", "step_types": "Dance"}, "query.step_types.0"),
            ({"q": "x", "since": "yesterday"}, "query.since"),
            ({"q": "x", "min_score": "nan"}, "query.min_score"),
            ({"q": "x", "metadata": "{"}, "query.metadata"),
            ({"q": "x", "metadata": '{"a": 1, "a": 2}'}, "query.metadata"),
        ],
    )
    def test_what_is_wrong_is_named(self, still: Served, asked: dict[str, str], field: str) -> None:
        found = problem(still.client.get("/search", params=asked), 422)
        assert field in {error["field"] for error in found["errors"]}

    @pytest.mark.parametrize("asked", [{}, {"q": ""}, {"q": "  "}, {"q": "a", "like": "act"}])
    def test_without_a_question_there_is_no_answer(
        self, still: Served, asked: dict[str, str]
    ) -> None:
        assert problem(still.client.get("/search", params=asked), 422)["error"]


class TestRuns:
    def test_they_are_listed_and_read(self, still: Served) -> None:
        (listed,) = still.client.get("/runs").json()["runs"]
        assert (listed["run_id"], listed["steps"], listed["errors"]) == ("run-1", 3, 1)
        assert listed["begins"] == "Agent: Refund the ticket"
        whole = still.client.get("/runs/run-1").json()
        assert whole["run"] == listed
        assert [step["id"] for step in whole["steps"]] == ["call", "act", "end"]
        assert whole["metrics"]["input_tokens"] == 7
        assert whole["live"] is False
        assert "vector" not in whole["steps"][1]

    def test_one_that_is_over_cannot_be_stopped(self, still: Served) -> None:
        stopped = still.client.post("/runs/run-1/cancel")
        assert stopped.json() == {"run_id": "run-1", "cancelled": False}


class TestBadInput:
    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("GET", "/sessions/none/steps", None),
            ("GET", "/sessions/none/steps/1", None),
            ("GET", "/sessions/talk/steps/5", None),
            ("GET", "/sessions/none/attempts", None),
            ("GET", "/sessions/none/context", None),
            ("GET", "/sessions/none/compare?branch_a=1&branch_b=2", None),
            ("DELETE", "/sessions/none/steps?start_seq=1", None),
            ("POST", "/sessions/none/fork", {"sequence": 1}),
            ("POST", "/sessions/talk/fork", {"sequence": 5}),
            ("GET", "/runs/none", None),
            ("GET", "/runs/none/events", None),
            ("POST", "/runs/none/cancel", None),
            ("GET", "/nothing", None),
            ("GET", "/static/nothing.js", None),
            ("GET", "/static/../app.py", None),
            ("GET", "/docs", None),
        ],
    )
    def test_what_is_not_there_is_404(
        self, still: Served, method: str, path: str, body: Any
    ) -> None:
        problem(still.client.request(method, path, json=body), 404)

    @pytest.mark.parametrize(
        ("path", "body", "field"),
        [
            ("/sessions/talk/fork", {}, "body.sequence"),
            ("/sessions/talk/fork", {"sequence": 0}, "body.sequence"),
            ("/sessions/talk/fork", {"sequence": 10**30}, "body.sequence"),
            ("/sessions/talk/fork", {"sequence": "two"}, "body.sequence"),
            ("/sessions/talk/fork", {"sequence": 1, "at": 2}, "body.at"),
            ("/sessions/talk/fork", [], "body"),
            ("/sessions/talk/resume", {"answers": {"c": 1}}, "body.answers"),
            ("/chat/stream/v2", {"session_id": "s"}, "body.message"),
            ("/chat/stream/v2", {"message": ""}, "body.message"),
            ("/chat/stream/v2", {"message": " \n"}, "body.message"),
            ("/sessions/talk/retry", {"sequence": -1}, "body.sequence"),
            ("/sessions/talk/fork?at=2", {"sequence": 1}, "query.at"),
        ],
    )
    def test_a_wrong_body_is_422_and_names_the_field(
        self, still: Served, path: str, body: Any, field: str
    ) -> None:
        found = problem(still.client.post(path, json=body), 422)
        assert field in {error["field"] for error in found["errors"]}
        assert field.split(".")[0] in found["detail"]

    @pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b'{"sequence": NaN}', b"[" * 5000, b""])
    def test_a_body_that_is_no_json_is_refused(self, still: Served, raw: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        answer = still.client.post("/sessions/talk/fork", content=raw, headers=headers)
        assert answer.status_code in (400, 422)
        problem(answer, answer.status_code)

    def test_a_surrogate_in_a_body_is_refused(self, still: Served) -> None:
        headers = {"Content-Type": "application/json"}
        raw = b'{"sequence": 1, "new_session_id": "\\ud800", "\\udfff": 1}'
        problem(still.client.post("/sessions/talk/fork", content=raw, headers=headers), 422)

    @pytest.mark.parametrize(
        ("path", "raw", "key"),
        [
            ("/sessions/talk/fork", '{"sequence": 1, "sequence": 2}', "sequence"),
            ("/sessions/talk/fork", '{"sequence": 1, "\\u0073equence": 1}', "sequence"),
            ("/chat/stream/v2", '{"message": [{"type": "text", "type": "text"}]}', "type"),
            ("/sessions/talk/resume", '{"answers": {"call": true, "call": false}}', "call"),
        ],
    )
    def test_a_key_that_comes_twice_is_400(
        self, still: Served, path: str, raw: str, key: str
    ) -> None:
        headers = {"Content-Type": "application/json"}
        found = problem(still.client.post(path, content=raw, headers=headers), 400)
        assert f"the key '{key}" in found["detail"]

    def test_other_methods_are_405(self, still: Served) -> None:
        answer = still.client.put("/sessions")
        problem(answer, 405)
        assert answer.headers["allow"] == "GET"

    def test_a_body_that_is_too_large_is_413_however_it_comes(self, still: Served) -> None:
        large = b'{"sequence": 1, "x": "' + b"y" * 1_100_000 + b'"}'
        problem(still.client.post("/sessions/talk/fork", content=large), 413)

        def pieces() -> Iterator[bytes]:
            for _ in range(40):
                yield b" " * 65_536

        problem(still.client.post("/sessions/talk/fork", content=pieces()), 413)

    def test_a_body_that_does_not_arrive_is_408(self, filled: StepMemory) -> None:
        with serving(filled, body_seconds=0.1) as served:
            host, port = served.client.base_url.host, served.client.base_url.port
            said = asyncio.run(_half_a_request(host, port or 0))
        assert said.startswith(b"HTTP/1.1 408 ")

    def test_chat_and_retry_without_a_program_name_the_flag(self, still: Served) -> None:
        for path, body in (
            ("/chat/stream/v2", {"session_id": "talk", "message": "hi"}),
            ("/sessions/talk/retry", {"sequence": 3}),
            ("/sessions/talk/resume", None),
        ):
            found = problem(still.client.post(path, json=body), 503)
            assert "--program package.module:name" in found["detail"]
        assert len(still.client.get("/sessions/talk/steps").json()["steps"]) == 4


async def _half_a_request(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        "POST /sessions/talk/fork HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n{{"
    )
    writer.write(head.encode())
    said = await reader.readline()
    writer.close()
    return said


class TestMetrics:
    def test_the_six_key_figures_move(self, file_memory: StepMemory) -> None:
        with serving(file_memory, echo) as served:
            before = figures(served)
            served.chat("talk", "hello")
            served.client.post("/sessions/talk/fork", json={"sequence": 1})
            with served.client.stream("POST", "/sessions/talk/retry", json={"sequence": 1}) as run:
                run.read()
            served.client.get("/sessions/talk/context")
            served.client.get("/sessions/talk/steps")
            after = figures(served)
        for name in (
            'created_total{kind="message"}',
            'created_total{kind="agent_step"}',
            "context_build_seconds_count",
            "retries_total",
            "forks_total",
            'stored{kind="steps"}',
            'stored{kind="messages"}',
            "storage_bytes",
            'query_seconds_count{query="steps"}',
            'runs_total{status="completed"}',
        ):
            full = f"hybridagi_steps_{name}"
            assert after[full] > before.get(full, 0), name

    def test_two_apps_do_not_add_up(self, memory: StepMemory) -> None:
        with serving(memory) as one, serving(memory) as two:
            one.client.get("/sessions")
            name = 'hybridagi_steps_query_seconds_count{query="sessions"}'
            assert figures(one)[name] == 1
            assert name not in figures(two)


def figures(served: Served) -> dict[str, float]:
    """What /metrics says, by name and labels."""
    answer = served.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


class TestErrors:
    def test_every_leaf_of_the_tree_has_a_status_of_its_own_or_its_parents(self) -> None:
        kinds = [
            value
            for value in vars(errors).values()
            if inspect.isclass(value) and issubclass(value, errors.StepsError)
        ]
        leaves = [kind for kind in kinds if not kind.__subclasses__()]
        assert len(leaves) > 30
        unmapped = [kind.__name__ for kind in leaves if not set(kind.__mro__) & set(STATUS)]
        assert unmapped == []

    def test_the_nearest_class_counts(self) -> None:
        assert status_of(errors.DuplicateStepError("a")) == 409
        assert status_of(errors.UnknownSessionError("s")) == 404
        assert status_of(errors.SequenceConflictError("moved")) == 409

    def test_a_run_has_the_fields_of_its_record(self) -> None:
        of_record = {*RunSummary._fields} - {"title"} | {"begins"}
        assert set(shapes.RunShape.model_fields) == of_record

    def test_a_run_and_its_steps_have_one_order_of_keys_everywhere(self, still: Served) -> None:
        (listed,) = still.client.get("/runs").json()["runs"]
        whole = still.client.get(f"/runs/{listed['run_id']}").json()
        shared = [key for key in listed if key in whole["run"]]
        assert [key for key in whole["run"] if key in listed] == shared
        hits = still.client.get("/search", params={"q": "refund", "expand": "program"}).json()
        steps = [hit["step"] for hit in hits["hits"]] + whole["steps"]
        for step in steps:
            assert list(step) == [name for name in AgentStep.model_fields if name in step]

    def test_a_fault_says_no_more_than_that(
        self, filled: StepMemory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(**_: Any) -> Any:
            raise RuntimeError("secret path")

        monkeypatch.setattr(filled, "runs", broken)
        with serving(filled) as served:
            found = problem(served.client.get("/runs"), 500)
        assert "secret" not in str(found)
