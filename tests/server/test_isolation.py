"""One user never sees, changes or erases another's: every route, MCP tool and call, by two users.

Ann has a session, a run and steps; Bob has none, and knows all their ids. A route, tool or method
that is new fails here until somebody says what Bob gets.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")

from server_cases import Served, Told, echo, events_of, problem, serving

import hybridagi_steps as hs
from hybridagi_steps import AgentSession, AgentStep, AgentStepType, StepMemory, StepRunner, errors
from hybridagi_steps.server.mcp_server import create_mcp_server
from hybridagi_steps.server.tokens import Caller, TokenScope
from hybridagi_steps.sessions.repository import SessionRepository, compare_branches, fork_session

SECRET = "peridot"  # noqa: S105 - a word that only Ann has said
SESSION = "anns-session"
NO_SESSION = "no-session"
TOKENS = {user: f"the-test-token-of-{user}" for user in ("ann", "bob")}
OWN = frozenset({TokenScope.READ, TokenScope.APPEND, TokenScope.DELETE})
OPEN = {"/", "/healthz", "/readyz"}
"""Paths that tell nothing of anybody."""


class Asked(NamedTuple):
    """What Bob sends; `{session}` and `{run}` stand for Ann's, or for what is not there."""

    path: str
    body: Any = None
    refused: bool = True
    """Else he is answered, with nothing of Ann's."""


ROUTES: dict[tuple[str, str], list[Asked]] = {
    ("GET", "/search"): [
        Asked(f"/search?q={SECRET}&k=50", refused=False),
        Asked(f"/search?q={SECRET}&session_id={{session}}", refused=False),
        Asked(f"/search?q={SECRET}&run_id={{run}}&expand=program&scope=*", refused=False),
        Asked(f"/search?q={SECRET}&user_id=ann"),
    ],
    ("GET", "/sessions"): [
        Asked("/sessions", refused=False),
        Asked("/sessions?user_id=ann"),
    ],
    ("GET", "/sessions/{session_id}/steps"): [Asked("/sessions/{session}/steps")],
    ("GET", "/sessions/{session_id}/steps/{sequence}"): [Asked("/sessions/{session}/steps/1")],
    ("DELETE", "/sessions/{session_id}/steps"): [Asked("/sessions/{session}/steps?start_seq=1")],
    ("DELETE", "/sessions/{session_id}"): [Asked("/sessions/{session}")],
    ("GET", "/sessions/{session_id}"): [Asked("/sessions/{session}")],
    ("PATCH", "/sessions/{session_id}"): [Asked("/sessions/{session}", {"title": "Mine"})],
    ("POST", "/sessions/{session_id}/fork"): [Asked("/sessions/{session}/fork", {"sequence": 1})],
    ("GET", "/sessions/{session_id}/attempts"): [Asked("/sessions/{session}/attempts")],
    ("GET", "/sessions/{session_id}/compare"): [
        Asked("/sessions/{session}/compare?branch_a=1&branch_b=1")
    ],
    ("GET", "/sessions/{session_id}/context"): [Asked("/sessions/{session}/context?recall=all")],
    ("POST", "/purge"): [
        Asked("/purge", {"where": {"user_id": "ann"}}),
        Asked("/purge", {"where": {"user_id": ["bob", "ann"]}}),
        Asked("/purge", {"where": {"session_id": "{session}"}}, refused=False),
        Asked("/purge", {"where": {"run_id": "{run}"}}, refused=False),
    ],
    ("POST", "/sessions/{session_id}/retry"): [
        Asked("/sessions/{session}/retry", {"sequence": 1}),
        Asked("/sessions/{session}/retry", {"sequence": 1, "message": "else"}),
    ],
    ("POST", "/sessions/{session_id}/resume"): [Asked("/sessions/{session}/resume")],
    ("POST", "/chat/stream/v2"): [
        Asked("/chat/stream/v2", {"message": "me too", "user_id": "ann"}),
    ],
    ("POST", "/v1/chat/completions"): [
        Asked(
            "/v1/chat/completions",
            {"model": "echo", "messages": [{"role": "user", "content": "me too"}], "user": "ann"},
        ),
    ],
    ("POST", "/v1/responses"): [
        Asked("/v1/responses", {"model": "echo", "input": "me too", "user": "ann"}),
    ],
    ("GET", "/v1/models"): [Asked("/v1/models", refused=False)],
    ("GET", "/v1/models/{model}"): [Asked("/v1/models/echo", refused=False)],
    ("GET", "/runs"): [Asked("/runs", refused=False)],
    ("GET", "/runs/{run_id}"): [Asked("/runs/{run}")],
    ("GET", "/runs/{run_id}/outlook"): [Asked("/runs/{run}/outlook")],
    ("GET", "/runs/{run_id}/graph"): [Asked("/runs/{run}/graph")],
    ("GET", "/map"): [Asked("/map", refused=False), Asked("/map?user_id=ann")],
    ("GET", "/steps/{step_id}/prompt"): [Asked("/steps/{step}/prompt")],
    ("GET", "/runs/{run_id}/events"): [Asked("/runs/{run}/events")],
    ("POST", "/runs/{run_id}/cancel"): [Asked("/runs/{run}/cancel")],
    ("POST", "/runs/{run_id}/score"): [Asked("/runs/{run}/score", {"value": 0.5})],
    ("POST", "/steps/{step_id}/score"): [Asked("/steps/{step}/score", {"value": 0.5})],
    ("GET", "/questions"): [Asked("/questions", refused=False)],
    ("POST", "/steps/{step_id}/answer"): [Asked("/steps/{step}/answer", {"text": "me"})],
    ("GET", "/metrics"): [Asked("/metrics")],
    ("GET", "/work"): [Asked("/work")],
    ("GET", "/caller"): [Asked("/caller", refused=False)],
}
OF_ALL = ("/metrics", "/work")
"""What no user's own token is told."""


class World(NamedTuple):
    """What Ann has, on a server."""

    served: Served
    memory: StepMemory
    run_id: str
    step_id: str

    def ask(self, user: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Return the answer to a user."""
        headers = {"Authorization": f"Bearer {TOKENS[user]}"}
        return self.served.client.request(method, path, json=body, headers=headers)

    def everything(self) -> list[Any]:
        """Return all that is stored of Ann's."""
        store = self.memory.repository().store
        steps = [step.model_dump(mode="json") for step in self.memory.iter_steps()]
        return [steps, store.messages(SESSION), store.attempts(SESSION)]


@pytest.fixture
def world() -> Iterator[World]:
    """Ann's session with one turn, and a step of it."""
    with StepMemory(":memory:", embedder="hashing") as memory:
        callers = {TOKENS[user]: Caller(OWN, user) for user in TOKENS}
        with serving(memory, echo, callers) as served:
            headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
            events = served.chat(SESSION, f"my stone is a {SECRET}", **headers)
            run_id = events[0].data["run_id"]
            [step, *_] = memory.run_steps(run_id)
            yield World(served, memory, run_id, str(step.id))


def test_every_route_says_what_another_user_gets(world: World) -> None:
    routes = world.served.server.config.app.state.routes  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess] - the app
    known = {
        (method, route.path.replace(":anything", ""))
        for route in routes
        for method in route.methods - {"HEAD"}
        if route.path not in OPEN
    }
    assert known == set(ROUTES)


@pytest.mark.parametrize(
    ("method", "asked"), [(m, a) for (m, _), all_ in ROUTES.items() for a in all_]
)
def test_a_route_tells_another_user_nothing(world: World, method: str, asked: Asked) -> None:
    before = world.everything()

    def told(session: str, run: str, step: str) -> tuple[int, str]:
        names = {"{session}": session, "{run}": run, "{step}": step}
        text = json.dumps([asked.path, asked.body])
        for name, value in names.items():
            text = text.replace(name, value)
        path, body = json.loads(text)
        answer = world.ask("bob", method, path, body)
        said = answer.text.replace(session, "S").replace(run, "R").replace(step, "T")
        return answer.status_code, said

    status, text = told(SESSION, world.run_id, world.step_id)
    assert status == (403 if asked.refused else 200), text
    assert SECRET not in text
    assert told(NO_SESSION, "no-run", "no-step") == (status, text)
    assert world.everything() == before


def test_the_owner_is_served(world: World) -> None:
    for (method, _), all_ in ROUTES.items():
        for asked in all_:
            if (
                method == "GET"
                and asked.path not in ("/metrics", "/work")
                and "compare" not in asked.path
            ):
                path = asked.path.replace("{session}", SESSION).replace("{run}", world.run_id)
                path = path.replace("{step}", world.step_id)
                answer = world.ask("ann", method, path)
                assert answer.status_code == 200, (path, answer.text)
    hits = world.ask("ann", "GET", f"/search?q={SECRET}").json()["hits"]
    assert any(SECRET in json.dumps(hit) for hit in hits)
    assert [
        each["session_id"] for each in world.ask("ann", "GET", "/sessions").json()["sessions"]
    ] == [SESSION]
    assert [each["run_id"] for each in world.ask("ann", "GET", "/runs").json()["runs"]] == [
        world.run_id
    ]


def test_who_asks_for_others_too_is_refused_as_who_asks_for_them(world: World) -> None:
    for path in (f"/search?q={SECRET}", "/runs?limit=1", "/map?limit=1"):
        own = world.ask("bob", "GET", f"{path}&user_id=bob&user_id=bob")
        assert (own.status_code, SECRET in own.text) == (200, False)
        refused = problem(world.ask("bob", "GET", f"{path}&user_id=bob&user_id=ann"), 403)
        assert refused == problem(world.ask("bob", "GET", f"{path}&user_id=ann"), 403)


def test_another_users_session_does_not_go_on(world: World) -> None:
    before = world.everything()
    body = {"session_id": SESSION, "message": "me too"}
    assert world.ask("bob", "POST", "/chat/stream/v2", body).status_code == 403
    said = [{"role": "user", "content": "me too"}]
    body = {"model": "echo", "messages": said, "metadata": {"session_id": SESSION}}
    assert world.ask("bob", "POST", "/v1/chat/completions", body).status_code == 403
    fork = world.ask(
        "ann", "POST", f"/sessions/{SESSION}/fork", {"sequence": 1, "new_session_id": "f"}
    )
    assert fork.status_code == 200
    assert world.ask("bob", "GET", "/sessions/f/steps").status_code == 403
    assert world.everything() == before


def test_a_run_in_flight_is_its_users(world: World) -> None:
    told = Told()
    runner = StepRunner(told, world.memory)
    callers = {TOKENS[user]: Caller(OWN, user) for user in TOKENS}
    with serving(world.memory, runner, callers) as served:
        here = world._replace(served=served)
        headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
        body = {"session_id": "live", "message": "go"}
        with served.client.stream("POST", "/chat/stream/v2", json=body, headers=headers) as answer:
            events = events_of(answer.iter_bytes())
            run_id = next(events).data["run_id"]
            for method, path in [("GET", ""), ("GET", "/events"), ("POST", "/cancel")]:
                assert here.ask("bob", method, f"/runs/{run_id}{path}").status_code == 403
            assert here.ask("ann", "GET", f"/runs/{run_id}").json()["live"] is True
            told.say("done")
            told.end()
            assert [event.kind for event in events][-1] == "run_completed"


def test_a_token_for_other_memories_is_refused() -> None:
    caller = Caller(OWN, "ann", frozenset({"elsewhere"}))
    with StepMemory(":memory:") as memory, serving(memory, None, {TOKENS["ann"]: caller}) as served:
        headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
        assert served.client.get("/sessions", headers=headers).status_code == 403


def test_who_may_act_as_any_user_sees_everybody_and_one(world: World) -> None:
    client = world.served.client
    assert client.get("/sessions").json()["sessions"][0]["user_id"] == "ann"
    assert client.get("/sessions?user_id=bob").json()["sessions"] == []
    hits = client.get(f"/search?q={SECRET}&user_id=ann").json()["hits"]
    assert hits
    assert client.get(f"/search?q={SECRET}&user_id=bob").json()["hits"] == []
    assert client.get(f"/sessions/{SESSION}/steps").status_code == 200


def test_erasing_is_for_those_who_may_delete(world: World) -> None:
    caller = Caller(frozenset({TokenScope.APPEND}), "ann")
    with serving(world.memory, None, {TOKENS["ann"]: caller}) as served:
        here = world._replace(served=served)
        where = {"where": {"run_id": world.run_id}}
        assert here.ask("ann", "POST", "/purge", where).status_code == 403
    refused = world.ask("ann", "POST", "/purge", {"where": {}})
    assert refused.status_code == 422
    erased = world.ask("ann", "DELETE", f"/sessions/{SESSION}").json()
    assert erased["erased"] > 0
    assert erased["unreached"] == []
    assert world.ask("ann", "GET", "/sessions").json()["sessions"] == []
    assert SECRET not in json.dumps([s.model_dump(mode="json") for s in world.memory.iter_steps()])


CALLS: dict[str, Callable[[SessionRepository, str], Any]] = {
    "save_step": lambda repo, s: repo.save_step(message(s)),
    "save_steps_batch": lambda repo, s: repo.save_steps_batch([message(s)]),
    "append": lambda repo, s: repo.append(s, [{"role": "user", "content": "me too"}]),
    "commit": lambda repo, s: repo.commit(s, [{"role": "user", "content": "me too"}]),
    "get_steps": lambda repo, s: repo.get_steps(s),
    "get_step": lambda repo, s: repo.get_step(s, 1),
    "get_last_step": lambda repo, s: repo.get_last_step(s),
    "get_step_count": lambda repo, s: repo.get_step_count(s),
    "delete_steps": lambda repo, s: repo.delete_steps(s, 1),
    "sessions": lambda repo, _: repo.sessions(user_id="ann"),
    "fork": lambda repo, s: repo.fork(s, 1),
    "branch_at": lambda repo, s: repo.branch_at(s, 1),
    "adopt": lambda repo, s: repo.adopt(s, 1),
    "attempts": lambda repo, s: repo.attempts(s),
    # What stands beside the class:
    "compare_branches": lambda repo, s: compare_branches(repo, s, 1, 1),
    "fork_session": lambda repo, s: fork_session(s, 1, repo),
    "build_context_from_steps": lambda repo, s: hs.build_context_from_steps(s, repo),
    "get_context_summary": lambda repo, s: hs.get_context_summary(s, repo),
}
BESIDE = {"compare_branches", "fork_session", "build_context_from_steps", "get_context_summary"}
WRITES = {"save_step", "save_steps_batch", "append", "commit"}
"""What begins a session that is not there."""


def message(session_id: str) -> Any:
    """A message that could come next."""
    from hybridagi_steps import Step

    return Step.model_validate(
        {"session_id": session_id, "sequence": 3, "role": "user", "content": "x"}
    )


def test_every_call_of_sessions_says_what_another_user_gets() -> None:
    calls = {
        name
        for name, value in vars(SessionRepository).items()
        if inspect.iscoroutinefunction(value) and not name.startswith("_")
    }
    assert calls == set(CALLS) - BESIDE


@pytest.mark.parametrize("name", CALLS)
def test_a_call_about_another_users_session_is_refused(world: World, name: str) -> None:
    before, bobs = world.everything(), world.memory.repository(user_id="bob")
    for session in (SESSION, NO_SESSION) if name not in WRITES else (SESSION,):
        with pytest.raises(errors.NotAllowedError) as refused:
            asyncio.run(CALLS[name](bobs, session))
        assert SECRET not in str(refused.value)
    assert world.everything() == before
    assert asyncio.run(bobs.sessions()) == []


def test_a_user_writes_in_that_users_name_only(memory: StepMemory) -> None:
    bobs = memory.repository(user_id="bob")
    [said] = asyncio.run(bobs.append("b", [{"role": "user", "content": "hi"}]))
    assert said.user_id == memory.repository().store.session_owner("b") == "bob"
    with pytest.raises(errors.NotAllowedError):
        asyncio.run(bobs.append("b", [{"role": "user", "content": "hi", "user_id": "ann"}]))
    anns = AgentStep(step_type=AgentStepType.Action, user_id="ann")
    with pytest.raises(errors.NotAllowedError):
        asyncio.run(bobs.commit("b", [], [anns]))


RUNS: dict[str, Callable[[StepRunner, AgentSession], Any]] = {
    "run_stream": lambda runner, session: runner.run_stream(session, "me too"),
    "resume_from_user_step": lambda runner, session: runner.resume_from_user_step(
        session, message(session.session_id)
    ),
    "resume": lambda runner, session: runner.resume(session),
    "retry": lambda runner, session: runner.retry(session, 1),
    "edit": lambda runner, session: runner.edit(session, 1, "else"),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_run_begins_in_another_users_session(world: World, name: str) -> None:
    before, runner = world.everything(), StepRunner(echo, world.memory)

    async def read() -> None:
        async for _ in RUNS[name](runner, AgentSession(SESSION, "bob")):
            pass

    with pytest.raises(errors.NotAllowedError):
        asyncio.run(read())
    assert world.everything() == before


def test_no_tool_of_mcp_tells_another_users_steps(world: World) -> None:
    server = create_mcp_server(world.memory, "bob")

    async def told(name: str, **arguments: Any) -> str:
        try:
            return str(await server.call_tool(name, arguments))
        except Exception as error:
            return f"refused: {error}"

    async def ask() -> dict[str, list[str]]:
        listed = {tool.name for tool in await server.list_tools()}
        asked = {
            "search_steps": [
                await told("search_steps", query=SECRET),
                await told("search_steps", like=world.step_id),
                await told("search_steps", query=SECRET, where={"user_id": "ann"}),
                await told("search_steps", query=SECRET, where={"user_id": ["bob", "ann"]}),
            ],
            "get_run": [await told("get_run", run_id=world.run_id)],
            "get_step": [await told("get_step", step_id=world.step_id)],
            "add_step": [await told("add_step", step_type="Action", inputs={"purpose": "mine"})],
        }
        assert listed == set(asked)
        listed_runs, *_ = await server.read_resource("steps://runs")
        assert world.run_id not in str(listed_runs)
        with pytest.raises(Exception, match="no run has the id"):
            await server.read_resource(f"steps://runs/{world.run_id}")
        assert SECRET not in str(await server.get_prompt("recall", {"task": "anything"}))
        return asked

    answers = asyncio.run(ask())
    assert SECRET not in str(answers["search_steps"][0]) + str(answers["get_run"])
    refused = (*answers["search_steps"][1:], *answers["get_run"], *answers["get_step"])
    assert all("refused" in text for text in refused)
    own = [step.user_id for step in world.memory.iter_steps() if step.purpose == "mine"]
    assert own == ["bob"]


def test_a_step_kept_by_mcp_names_nothing_of_another_user(world: World) -> None:
    repo, memory = world.memory.repository(), world.memory
    said = {"role": "user", "content": "hi"}
    asyncio.run(repo.append("nobodys", [said]))
    asyncio.run(memory.repository(user_id="bob").append("bobs", [said]))
    server = create_mcp_server(memory, "bob")

    async def add(**named: str) -> str:
        try:
            answer = await server.call_tool(
                "add_step", {"step_type": "Action", "inputs": {"purpose": "x"}, **named}
            )
        except Exception as error:
            return f"refused: {error}"
        return str(answer)

    before = world.everything()
    for named in ({"session_id": SESSION}, {"session_id": "nobodys"}, {"run_id": world.run_id}):
        assert "refused" in asyncio.run(add(**named))
    assert world.everything() == before
    for named in ({"session_id": "bobs"}, {"session_id": "new"}, {"run_id": "bobs-run"}) * 2:
        assert "refused" not in asyncio.run(add(**named))
    assert world.ask("ann", "GET", f"/runs/{world.run_id}").status_code == 200
    assert world.ask("bob", "GET", "/sessions/nobodys/steps").status_code == 403
    with pytest.raises(errors.InvalidSettingError, match="user_id"):
        create_mcp_server(memory, "")


def spoken(world: World, user: str, session: str, text: str, **headers: str) -> str:
    """Let a user say something; return the run."""
    headers["Authorization"] = f"Bearer {TOKENS[user]}"
    return world.served.chat(session, text, **headers)[0].data["run_id"]


def run_statuses(world: World, user: str, run_id: str) -> set[int]:
    """What a user hears of a run, whatever the route."""
    asked = (("GET", ""), ("GET", "/events"), ("POST", "/cancel"))
    return {world.ask(user, method, f"/runs/{run_id}{path}").status_code for method, path in asked}


def all_of(session: str) -> dict[str, Any]:
    """The body of a purge of a session."""
    return {"where": {"session_id": session}}


ERASURES: dict[str, tuple[str, str, Any]] = {
    "session": ("DELETE", "/sessions/reused", None),
    "purge of session": ("POST", "/purge", all_of("reused")),
    "purge of user": ("POST", "/purge", {"where": {"user_id": "ann"}}),
}


@pytest.mark.parametrize("name", ERASURES)
def test_what_is_erased_is_not_kept_with_its_run(world: World, name: str) -> None:
    key = {"Idempotency-Key": "k"}
    anns = spoken(world, "ann", "reused", "pin 4711", **key)
    assert run_statuses(world, "ann", anns) == {200}
    erased = world.ask("ann", *ERASURES[name])
    assert erased.json()["erased"] > 0
    bobs = spoken(world, "bob", "reused", "pin 4711", **key)
    assert bobs != anns
    assert run_statuses(world, "bob", anns) == {403}
    assert run_statuses(world, "ann", anns) == {403}
    assert world.served.client.get(f"/runs/{anns}/events").status_code == 404
    assert run_statuses(world, "bob", bobs) == {200}


def test_a_session_that_a_fork_reads_is_erased_with_an_answer(world: World) -> None:
    fork = {"sequence": 2, "new_session_id": "fork"}
    assert world.ask("ann", "POST", f"/sessions/{SESSION}/fork", fork).status_code == 200
    erased = world.ask("ann", "DELETE", f"/sessions/{SESSION}")
    assert erased.status_code == 200
    assert {"erased", "unreached"} <= set(erased.json())
    assert world.served.client.get(f"/sessions/{SESSION}/steps").status_code == 404
    assert len(world.ask("ann", "GET", "/sessions/fork/steps").json()["steps"]) == 2
    assert world.served.client.delete(f"/sessions/{SESSION}").status_code == 404


def test_who_deletes_a_session_deletes_no_steps_of_others_in_it(world: World) -> None:
    memory, client = world.memory, world.served.client
    bobs = spoken(world, "bob", "shared", "hi")
    body = {"session_id": "shared", "message": f"my {SECRET}", "user_id": "ann"}
    with client.stream("POST", "/chat/stream/v2", json=body) as answer:
        first, *_ = events_of(answer.iter_bytes())
    anns = first.data["run_id"]
    noted = AgentStep(step_type=AgentStepType.Action, user_id="ann", session_id="shared")
    memory.add(noted)
    kept = [step.id for step in memory.iter_steps({"user_id": "ann"})]
    assert memory.run_steps(anns)
    # What he hides first is not his to erase, either.
    assert world.ask("bob", "DELETE", "/sessions/shared/steps?start_seq=1").status_code == 200
    assert world.ask("bob", "DELETE", "/sessions/shared").json()["erased"] > 0
    assert [step.id for step in memory.iter_steps({"user_id": "ann"})] == kept
    assert memory.run_steps(bobs) == []
    assert world.ask("ann", "GET", f"/runs/{anns}").json()["run"]["steps"] > 0
    assert SECRET in world.ask("ann", "GET", f"/search?q={SECRET}").text
    assert world.ask("bob", "GET", "/sessions/shared/steps").status_code == 403
    assert memory.verify() == []
    assert client.delete("/sessions/shared").json()["erased"] > 0  # an admin takes all
    assert memory.run_steps(anns) == []


def test_a_fork_of_another_user_is_named_nowhere(world: World) -> None:
    client, private = world.served.client, "ann-leaves-company-plan"
    spoken(world, "ann", "common", "hello")
    body = {"session_id": "common", "message": "I know a jasper", "user_id": "bob"}
    with client.stream("POST", "/chat/stream/v2", json=body) as answer:
        first, *_ = events_of(answer.iter_bytes())
    fork = {"sequence": 4, "new_session_id": private}
    assert world.ask("ann", "POST", "/sessions/common/fork", fork).status_code == 200

    def found() -> list[tuple[str, str | None]]:
        answer = world.ask("bob", "GET", "/search?q=jasper&k=9&expand=following")
        assert private not in answer.text
        hits = answer.json()["hits"]
        return [(hit["kind"], hit.get("session_id")) for hit in hits if "jasper" in str(hit)]

    assert ("message", "common") in found()
    assert world.ask("ann", "DELETE", "/sessions/common").status_code == 200
    assert ("message", None) in found()
    places = world.memory.search("jasper", 9, where={"user_id": "bob"})
    assert private not in {hit.session_id for hit in places}
    assert private in {hit.session_id for hit in world.memory.search("jasper", 9)}
    where = {"where": {"run_id": first.data["run_id"]}}
    left = world.ask("bob", "POST", "/purge", where).json()
    assert (left["messages_left"] > 0, left["sessions_left"]) == (True, [])


def test_the_events_of_hidden_messages_are_as_after_a_restart(world: World) -> None:
    run_id = spoken(world, "ann", "hides", "pin 4711")
    assert world.ask("ann", "DELETE", "/sessions/hides/steps?start_seq=1").json()["deleted"] > 0

    def shown(here: World) -> list[tuple[str, str, Any]]:
        answer = here.ask("ann", "GET", f"/runs/{run_id}/events")
        return [(e.id, e.kind, e.data.get("step_id")) for e in events_of(iter([answer.content]))]

    with serving(world.memory, echo, {TOKENS["ann"]: Caller(OWN, "ann")}) as restarted:
        assert shown(world) == shown(world._replace(served=restarted))


def test_a_key_is_its_users(world: World) -> None:
    client, key = world.served.client, {"Idempotency-Key": "k"}
    runs = {
        user: world.served.chat("shared", "hi", **key)[0].data["run_id"] for user in ("ann", "bob")
    }
    assert len({*runs.values()}) == 1  # an admin's, of nobody
    of_user: list[str] = []
    for user in ("ann", "bob", "ann"):
        body = {"session_id": "common", "message": f"of {user}", "user_id": user}
        with client.stream("POST", "/chat/stream/v2", json=body, headers=key) as answer:
            assert answer.status_code == 200
            of_user.append(next(events_of(answer.iter_bytes())).data["run_id"])
    assert of_user[0] == of_user[2] != of_user[1]


def test_a_run_in_anothers_session_is_its_users_before_and_after_a_restart(world: World) -> None:
    client = world.served.client
    spoken(world, "bob", "bobs", "hi")
    body = {"session_id": "bobs", "message": "of ann", "user_id": "ann"}
    with client.stream("POST", "/chat/stream/v2", json=body) as answer:
        first, *_ = events_of(answer.iter_bytes())
    run_id = first.data["run_id"]
    callers = {TOKENS[user]: Caller(OWN, user) for user in TOKENS}
    with serving(world.memory, echo, callers) as restarted:
        for here in (world, world._replace(served=restarted)):
            assert run_statuses(here, "bob", run_id) == {403}
            assert run_statuses(here, "ann", run_id) == {200}


def test_who_takes_up_anothers_turn_leaves_it_its_users(world: World) -> None:
    answer = world.served.client.post(f"/sessions/{SESSION}/retry", json={"sequence": 1})
    first, *_ = events_of(iter([answer.content]))
    assert run_statuses(world, "ann", first.data["run_id"]) == {200}


@contextmanager
def in_flight(world: World, session: str) -> Generator[tuple[World, str]]:
    """Have a run of Ann's in flight in a session."""
    told = Told()
    callers = {TOKENS[user]: Caller(OWN, user) for user in TOKENS}
    with serving(world.memory, StepRunner(told, world.memory), callers) as served:
        body = {"session_id": session, "message": "go", "user_id": "ann"}
        with served.client.stream("POST", "/chat/stream/v2", json=body) as answer:
            run_id = next(events_of(answer.iter_bytes())).data["run_id"]
            yield world._replace(served=served), run_id
            told.end()


def test_a_purge_tells_nothing_of_a_run_in_flight(world: World) -> None:
    with in_flight(world, "live") as (here, run_id):
        nothing = here.ask("bob", "POST", "/purge", all_of(NO_SESSION))
        told = here.ask("bob", "POST", "/purge", all_of("live"))
        assert (told.status_code, told.text) == (200, nothing.text)
        refused = here.ask("ann", "POST", "/purge", all_of("live"))
        assert refused.status_code == 409
        assert run_id in refused.text


def test_an_erased_session_is_not_free_while_a_run_goes_on_in_it(world: World) -> None:
    spoken(world, "bob", "bobs", "hi")
    with in_flight(world, "live") as (here, run_id):
        world.memory.purge({"session_id": "live"})
        for path, body in (
            ("/chat/stream/v2", {"session_id": "live", "message": "hi"}),
            ("/sessions/bobs/fork", {"sequence": 1, "new_session_id": "live"}),
        ):
            refused = here.ask("bob", "POST", path, body)
            assert refused.status_code == 403
            assert run_id not in refused.text


def test_a_conflict_in_ones_own_session_does_not_name_anothers_run(world: World) -> None:
    spoken(world, "bob", "bobs", "hi")
    with in_flight(world, "bobs") as (here, run_id):
        for method, path, body in (
            ("POST", "/chat/stream/v2", {"session_id": "bobs", "message": "hi"}),
            ("POST", "/sessions/bobs/retry", {"sequence": 1}),
            ("DELETE", "/sessions/bobs", None),
            ("DELETE", "/sessions/bobs/steps?start_seq=1", None),
            ("POST", "/purge", all_of("bobs")),
        ):
            refused = here.ask("bob", method, path, body)
            assert refused.status_code == 409, refused.text
            assert run_id not in refused.text


def test_erasing_a_user_ends_that_users_runs(world: World) -> None:
    with in_flight(world, "live") as (here, run_id):
        assert here.ask("ann", "POST", "/purge", {"where": {"user_id": "ann"}}).status_code == 200
        assert run_statuses(here, "ann", run_id) == {403}
        assert here.ask("bob", "POST", "/sessions/live/resume").status_code == 403
    assert not [step for step in world.memory.iter_steps() if step.user_id == "ann"]
    with pytest.raises(errors.UnknownSessionError):
        world.memory.repository().store.session_owner("live")


def test_one_that_is_anothers_is_looked_for_like_one_that_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = type(world.memory.repository().store)
    asked: list[str] = []
    for name in ("rows", "sessions", "messages", "get"):
        call: Any = getattr(store, name)

        def noted(*args: Any, _name: str = name, _call: Any = call, **more: Any) -> Any:
            asked.append(_name)
            return _call(*args, **more)

        monkeypatch.setattr(store, name, noted)
    ways: list[list[str]] = []
    for run_id in (world.run_id, "no-run"):
        asked.clear()
        assert world.ask("bob", "GET", f"/runs/{run_id}").status_code == 403
        ways.append([*asked])
    assert ways[0] == ways[1] != []


def test_like_what_is_anothers_is_asked_like_what_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.memory.repository().store
    message = store.messages(SESSION)[0].id
    asked: list[str] = []
    for name in ("get", "rows_of_messages", "read", "message_places"):
        call: Any = getattr(type(store), name)

        def noted(*args: Any, _name: str = name, _call: Any = call, **more: Any) -> Any:
            asked.append(_name)
            return _call(*args, **more)

        monkeypatch.setattr(type(store), name, noted)
    ways: list[tuple[int, str, list[str]]] = []
    for one in (world.step_id, message, "no-step"):
        asked.clear()
        answer = world.ask("bob", "GET", f"/search?like={one}")
        ways.append((answer.status_code, answer.text.replace(one, "S"), [*asked]))
    assert ways[0] == ways[1] == ways[2]
    assert ways[0][0] == 404
    assert "get" in ways[0][2]


def test_a_purge_that_only_leaves_something_out_is_refused(world: World) -> None:
    before = world.memory.stats()["steps"]
    body = {"where": {"exclude": {"until": "1970-01-01"}}}
    refused = world.ask("ann", "POST", "/purge", body)
    assert (refused.status_code, world.memory.stats()["steps"]) == (422, before)
    assert "picks something" in refused.json()["detail"]


@pytest.mark.parametrize(
    "condition", [{"run_id": "no-run"}, {"session_id": "x"}, {"user_id": "bob"}]
)
def test_a_purge_of_nothing_touches_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, condition: dict[str, str]
) -> None:
    store = world.memory.repository().store
    compacted: list[object] = []

    def compact(own: object) -> tuple[str, ...]:
        compacted.append(own)
        return ()

    monkeypatch.setattr(type(store), "compact", compact)
    body = {"where": condition}
    assert world.ask("bob", "POST", "/purge", body).json()["erased"] == 0
    assert compacted == []
    spoken(world, "bob", "x", "hi")
    assert world.ask("bob", "POST", "/purge", {"where": {"user_id": "bob"}}).json()["erased"] > 0
    assert len(compacted) == 1


def test_what_was_not_reached_shows_a_user_no_path(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = type(world.memory.repository().store)

    def compact(_: object) -> tuple[str, ...]:
        return ("/srv/steps.db",)

    monkeypatch.setattr(store, "compact", compact)
    assert world.ask("ann", "POST", "/purge", all_of(SESSION)).json()["unreached"] == [
        "a file of the server"
    ]
    purged = world.served.client.post("/purge", json={"where": {"user_id": "ann"}})
    assert purged.json()["unreached"] == ["/srv/steps.db"]


def test_titles_are_set_and_listed_for_their_own_user(world: World) -> None:
    path = f"/sessions/{SESSION}"
    assert world.ask("ann", "GET", path).json() == {}
    named = {"title": f"The {SECRET}", "metadata": {"pinned": True}}
    assert world.ask("ann", "PATCH", path, named).json() == named
    assert world.ask("ann", "PATCH", path, {"metadata": {}}).json()["title"] == named["title"]
    assert world.ask("ann", "PATCH", path, {"titel": "x"}).status_code == 422
    assert world.ask("ann", "PATCH", path, {"title": "x" * 201}).status_code == 422
    [listed] = world.ask("ann", "GET", "/sessions").json()["sessions"]
    assert (listed["title"], "runs" in listed) == (named["title"], False)
    assert SECRET not in world.ask("bob", "GET", "/sessions").text
    assert SECRET not in world.ask("bob", "PATCH", path, {"title": "Mine"}).text
    assert world.ask("ann", "GET", path).json()["title"] == named["title"]
