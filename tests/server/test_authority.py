"""What nobody allowed changes nothing of others: every route and tool, by its effect.

The walk is derived from the OpenAPI document and the list of tools, so a new route or tool is in
it. What is answered is not looked at: Ann's run in flight goes on, and her rows stay as they are.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import httpx
import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")

from mcp.server.mcpserver.exceptions import ToolError
from server_cases import Served, document, echo, events_of, serving, until

from hybridagi_steps import AgentStep, AgentStepType, StepMemory, StepRunner
from hybridagi_steps.errors import OwnershipError
from hybridagi_steps.server.mcp_server import create_mcp_server
from hybridagi_steps.server.tokens import Caller, TokenScope

SESSION, LIVE = "anns-session", "anns-live-session"
READ, APPEND, DELETE = TokenScope.READ, TokenScope.APPEND, TokenScope.DELETE
CALLERS = {
    "the-test-token-of-bob": Caller(frozenset({READ, APPEND, DELETE}), "bob"),
    "the-test-token-of-a-reader": Caller(frozenset({READ, TokenScope.AS_ANY_USER})),
    "the-test-token-of-a-deleter": Caller(frozenset({DELETE}), "bob"),
    "the-test-token-of-elsewhere": Caller(
        frozenset({TokenScope.ADMIN}), None, frozenset({"elsewhere"})
    ),
    "the-test-token-of-nobody-known": None,
}
"""Who may change nothing of Ann's, by token."""
ADMIN = "the-test-token-of-an-admin"
NOTHING_PICKED: list[dict[str, Any]] = [
    {},
    {"scope": "*"},
    {"trust": "imported"},
    {"user_id": None},
    {"metadata": {}},
    {"kinds": ["step", "message"]},
    {"exclude": [{"user_id": "nobody"}]},
    {"exclude_run_id": ["nothing"]},
]
"""Filters that leave out nothing, or only say what to leave out."""
_WAIT = "wait for it"


class Held:
    """A program that answers at once, but for Ann, whom it lets wait."""

    def __init__(self) -> None:
        self.ends = False

    async def __call__(self, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        """Speak."""
        if messages[-1]["content"] != _WAIT:
            async for piece in echo(messages):
                yield piece
            return
        yield "so far"
        while not self.ends:
            await asyncio.sleep(0.002)


class World(NamedTuple):
    """What Ann has."""

    served: Served
    memory: StepMemory
    program: Held
    names: Mapping[str, str]
    """Values of parameters that mean what is hers."""

    def rows(self) -> list[Any]:
        """Return all that is stored of Ann's, or tied to it."""
        store = self.memory.repository().store
        hers = [
            {"user_id": "ann", "scope": "*"},
            *({"run_id": self.names[run], "scope": "*"} for run in ("run_id", "live_run")),
            *({"session_id": session, "scope": "*"} for session in (SESSION, LIVE)),
        ]
        steps = [
            [(step.model_dump(mode="json")) for step in self.memory.iter_steps(each)]
            for each in hers
        ]
        tied = [
            step.id
            for step in self.memory.iter_steps({"scope": "*"})
            if str(step.parent_id) == self.names["step_id"] and step.user_id != "ann"
        ]
        told = [
            (store.messages(each), store.attempts(each), store.session_owner(each))
            for each in (SESSION, LIVE)
        ]
        return [steps, tied, told, self.memory.sessions(user_id="ann")]

    def check_run_goes_on(self) -> None:
        """Let Ann's run end by itself, and see that nothing else ended it."""
        self.program.ends = True
        live = self.served.services.hub.find(self.names["live_run"])
        assert live is not None, "it was cancelled and erased"
        until(lambda: live.ended)
        assert live.status == "completed"


@contextmanager
def anns_world() -> Generator[World]:
    """Ann's session with one turn, a step of it, and a run in flight."""
    program = Held()
    callers = {token: caller for token, caller in CALLERS.items() if caller is not None}
    callers[ADMIN] = Caller(frozenset({TokenScope.ADMIN}))
    with StepMemory(":memory:", embedder="hashing") as memory:
        runner = StepRunner(program, memory)
        with serving(memory, runner, callers) as served:
            done = speak(served, SESSION, "hello")
            memory.add(
                AgentStep(
                    id="anns-step",
                    step_type=AgentStepType.Action,
                    run_id=done,
                    user_id="ann",
                    inputs={"purpose": "look", "tool": "look", "arguments": {}},
                )
            )
            live = speak(served, LIVE, _WAIT)
            names = {
                "session_id": SESSION,
                "new_session_id": LIVE,
                "run_id": done,
                "step_id": "anns-step",
                "parent_id": "anns-step",
                "user_id": "ann",
                "user": "ann",
                "model": str(served.services.hub.program_name),
                "live_run": live,
            }
            try:
                yield World(served, memory, program, names)
            finally:
                program.ends = True


def speak(served: Served, session: str, message: str) -> str:
    """Say something as Ann; return the id of the run, which may still be in flight."""
    body = {"session_id": session, "message": message, "user_id": "ann"}
    with served.client.stream("POST", "/chat/stream/v2", json=body) as answer:
        events = events_of(answer.iter_bytes())
        run_id = next(events).data["run_id"]
        return str(run_id) if message == _WAIT else str([*events][-1].data["run_id"])


def filters(names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return filters that mean what is Ann's, or everything."""
    hers: list[dict[str, Any]] = [
        {"user_id": "ann"},
        {"user_id": ["ann", "bob"]},
        {"session_id": SESSION},
        {"session_id": LIVE},
        {"run_id": names["run_id"]},
        {"run_id": names["live_run"]},
        {"kinds": ["message"]},
        {"since": "2000-01-01"},
    ]
    return NOTHING_PICKED + hers


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with what it refers to in its place."""
    if "$ref" in schema:
        return resolved(document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return resolved(kinds[0]) if kinds else schema


def values(name: str, schema: Mapping[str, Any], names: Mapping[str, str]) -> list[Any]:
    """Return what an attacker would send under a name; the first is the usual one."""
    if name == "where":
        return filters(names)
    if name == "run_id":
        return [names["run_id"], names["live_run"]]
    if name == "session_id":
        return [SESSION, LIVE]
    if name in names:
        return [names[name]]
    found = resolved(schema)
    if "enum" in found or "const" in found:
        return [found.get("const", found.get("enum", [None])[0])]
    if "default" in schema and schema["default"] is not None:
        return [schema["default"]]
    if found.get("type") == "object" and "properties" in found:
        return objects(found, names)
    if found.get("type") == "array":
        return [[each] for each in values(name, found["items"], names)]
    plain: dict[str | None, Any] = {
        "integer": 1,
        "number": 0.5,
        "boolean": True,
        "object": {"purpose": "mine"},
    }
    return [plain.get(found.get("type"), "user" if name == "role" else "mine")]


def objects(schema: Mapping[str, Any], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return objects of a schema: the required members, every single one besides, and all."""
    found = resolved(schema)
    members: Mapping[str, Any] = found.get("properties", {})
    usual = {name: values(name, each, names)[0] for name, each in members.items()}
    least = {name: usual[name] for name in found.get("required", ())}
    built = [least, usual, *({**least, name: value} for name, value in usual.items())]
    for name, each in members.items():
        built += [{**least, name: value} for value in values(name, each, names)]
    return [each for number, each in enumerate(built) if each not in built[:number]]


def changing_routes() -> Iterator[tuple[str, str]]:
    """Yield the routes of the document that change something."""
    for path, entry in document()["paths"].items():
        for method in entry:
            if method not in ("get", "head", "options", "parameters"):
                yield method.upper(), path


def requests(method: str, path: str, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield addresses and bodies of what is sent to a route."""
    entry = document()["paths"][path][method.lower()]
    parameters = {each["name"]: each for each in entry.get("parameters", ())}
    query = "&".join(
        f"{name}={values(name, each['schema'], names)[0]}"
        for name, each in parameters.items()
        if each["in"] == "query"
    )
    places = [
        {"session_id": session, "run_id": run, **{k: v for k, v in names.items() if k == "step_id"}}
        for session, run in ((SESSION, names["run_id"]), (LIVE, names["live_run"]))
    ]
    schema = entry.get("requestBody", {}).get("content", {}).get("application/json", {})
    bodies = objects(schema["schema"], names) if schema else [None]
    for place in places:
        for body in bodies:
            yield path.format(**{**place, "sequence": 1}) + f"?{query}" * bool(query), body


def send(served: Served, token: str, method: str, address: str, body: Any) -> int:
    """Send a request, and leave when the answer begins; nobody waits for a run of Ann's."""
    headers = {"Authorization": f"Bearer {token}"}
    with served.client.stream(method, address, json=body, headers=headers, timeout=5) as answer:
        return answer.status_code


def test_the_walk_knows_the_routes_that_change_something() -> None:
    routes = {*changing_routes()}
    assert {("POST", "/purge"), ("DELETE", "/sessions/{session_id}")} < routes
    assert len(routes) > 10


@pytest.mark.parametrize(("method", "path"), [*changing_routes()])
def test_no_route_changes_what_is_anothers(method: str, path: str) -> None:
    with anns_world() as world:
        before, sent = world.rows(), 0
        for token in CALLERS:
            for address, body in requests(method, path, world.names):
                with suppress(httpx.ReadTimeout):  # an answer that waits for a run of Bob's own
                    send(world.served, token, method, address, body)
                sent += 1
                assert world.served.services.hub.is_live(world.names["live_run"]), (token, body)
        assert sent >= len(CALLERS)
        assert world.rows() == before
        world.check_run_goes_on()


@pytest.mark.parametrize("where", NOTHING_PICKED)
def test_an_erasure_that_is_refused_ends_no_run_of_anybody(where: dict[str, Any]) -> None:
    with anns_world() as world:
        before = world.rows()
        assert send(world.served, ADMIN, "POST", "/purge", {"where": where}) == 422
        assert world.rows() == before
        world.check_run_goes_on()


def test_no_tool_changes_what_is_anothers() -> None:
    async def walk(world: World) -> int:
        server, called = create_mcp_server(world.memory, "bob"), 0
        for tool in await server.list_tools():
            for arguments in objects(tool.input_schema, world.names):
                with suppress(ToolError):  # what it answers is not looked at
                    await server.call_tool(tool.name, arguments)
                called += 1
        return called

    with anns_world() as world:
        before = world.rows()
        assert asyncio.run(walk(world)) > 20
        assert world.rows() == before
        world.check_run_goes_on()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parent_id", "anns-step"),
        ("program_id", "anns-step"),
        ("run_id", "{run_id}"),
        ("run_id", "{live_run}"),
    ],
)
def test_no_step_joins_what_is_anothers(field: str, value: str) -> None:
    with anns_world() as world:
        named: dict[str, Any] = {field: value.format(**world.names)}
        inputs = {"purpose": "mine", "tool": "x", "arguments": {}}
        before = world.rows()
        bobs = world.memory.repository(user_id="bob")
        step = AgentStep(step_type=AgentStepType.Action, inputs=inputs, **named)
        said = {"role": "user", "content": "hi"}
        with pytest.raises(OwnershipError, match=field) as refused:
            asyncio.run(bobs.commit("bobs-session", said, [step]))
        assert (refused.value.field, refused.value.value) == (field, named[field])
        if field != "program_id":
            server = create_mcp_server(world.memory, "bob")
            arguments = {"step_type": "Action", "inputs": inputs, **named}
            with pytest.raises(ToolError, match="another user's"):
                asyncio.run(server.call_tool("add_step", arguments))
        assert world.rows() == before
        assert not world.memory.sessions(user_id="bob")


def test_steps_of_ones_own_run_and_parent_are_kept() -> None:
    with StepMemory(":memory:", embedder="hashing") as memory:
        bobs = memory.repository(user_id="bob")
        first = AgentStep(id="first", step_type=AgentStepType.ProgramCall, run_id="bobs-run")
        then = AgentStep(step_type=AgentStepType.Action, run_id="bobs-run", parent_id="first")
        last = AgentStep(step_type=AgentStepType.Action, run_id="bobs-run", program_id="first")
        said = {"role": "user", "content": "hi"}
        for steps in ([first, then], [last]):
            asyncio.run(bobs.commit("bobs-session", said, steps))
        assert len(memory.run_steps("bobs-run")) == 3
