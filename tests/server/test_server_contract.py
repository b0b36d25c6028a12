"""The OpenAPI document is true, and no input whatever gets a 500.

What is sent differs from run to run. A failure prints the seed; `HYBRIDAGI_STEPS_SEED=N` sends the
same again. `HYBRIDAGI_STEPS_EXAMPLES=N` sends more of it than the suite has time for.
"""

# schemathesis ships partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")
pytest.importorskip("schemathesis", reason="a check that needs schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import checks
from server_cases import TOKEN, Served, document, echo, events_of, fill, serving

from hybridagi_steps import StepEvent, StepMemory, StepRunner
from hybridagi_steps.server.app import create_app
from hybridagi_steps.server.tokens import Tokens, TokenScope

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
HELD = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
SLOW_OR_SHARED = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
)
ANY_SPEED = settings(
    max_examples=int(os.environ.get("HYBRIDAGI_STEPS_EXAMPLES", "30")),
    deadline=None,
    derandomize=False,
    suppress_health_check=SLOW_OR_SHARED,
)


schema = schemathesis.openapi.from_dict(deepcopy(document()))
if "HYBRIDAGI_STEPS_SEED" in os.environ:
    schema.config.seed = int(os.environ["HYBRIDAGI_STEPS_SEED"])
SEED = schema.config.seed


@pytest.fixture(autouse=True)
def seed_of_a_failure() -> None:
    """Say what has to be set to see a failure again; pytest shows it only then."""
    print(f"HYBRIDAGI_STEPS_SEED={SEED}")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server with a program and something to read."""
    with StepMemory(":memory:", embedder="hashing") as memory:
        fill(memory)
        with serving(memory, echo) as running:
            yield running


def is_what_it_says(_: Any, response: Any, case: Any) -> None:
    """Check what a schema cannot say: an error names its own status, a stream holds events."""
    (kind,) = response.headers.get("content-type", [""])  # 204 has none
    if case.path.startswith("/v1/"):
        assert kind.startswith("text/event-stream") or isinstance(response.json(), dict)
    elif response.status_code >= 400:
        assert kind == "application/problem+json"
        assert response.json()["status"] == response.status_code
    elif kind.startswith("text/event-stream"):
        events = list(events_of(iter([response.content])))
        read = [StepEvent.model_validate(event.data) for event in events]
        assert [event.type.value for event in read] == [event.kind for event in events]
        assert len({event.run_id for event in read}) == 1, case.formatted_path


def refuses_what_is_wrong(context: Any, response: Any, case: Any) -> None:
    """Check that wrong input is refused, unless what is wrong was not sent.

    A parameter without a value, such as an empty list, never comes into an address.
    """
    sent = parse_qs(urlsplit(response.request.url).query, keep_blank_values=True)
    if set(case.query or ()) <= set(sent):
        check: Any = checks.CHECKS.get_one("negative_data_rejection")
        check(context, response, case)


def checked() -> list[Any]:
    """Every check of an answer."""
    held = [checks.CHECKS.get_one(name) for name in HELD]
    return [*held, refuses_what_is_wrong, is_what_it_says]


@schema.parametrize()
@ANY_SPEED
def test_answers_are_what_the_document_says(case: Any, served: Served) -> None:
    case.call_and_validate(base_url=served.address, headers=HEADERS, checks=checked())


def test_every_route_is_in_the_document(served: Served) -> None:
    app: Any = served.server.config.app
    routes = {
        (route.path_format, method.lower())
        for route in app.state.routes
        if route.include_in_schema
        for method in route.methods
    }
    documented = {(path, how) for path, entry in document()["paths"].items() for how in entry}
    assert routes == documented


def test_answers_lead_to_answers_that_are_what_the_document_says() -> None:
    with StepMemory(":memory:", embedder="hashing") as memory, serving(memory, echo) as served:
        schema.config.update(base_url=served.address)

        class Talk(schema.as_state_machine()):
            """Sessions and runs that are listed are read, changed, answered, deleted."""

            def setup(self) -> None:
                """Begin each talk alike: one that is begun again must be answered alike."""
                super().setup()
                memory.clear()
                fill(memory)

            def get_call_kwargs(self, case: Any) -> dict[str, Any]:
                return {"headers": HEADERS}

            def validate_response(
                self, response: Any, case: Any, additional_checks: Any = (), **_: Any
            ) -> None:
                case.validate_response(response, checks=checked(), headers=HEADERS)

        seed(SEED)(Talk)
        alike = settings(ANY_SPEED, stateful_step_count=8, phases=(Phase.generate,))
        Talk.run(settings=alike)


def test_the_document_is_served_to_those_who_may_read(served: Served) -> None:
    assert served.client.get("/openapi.json").json() == document()


def test_an_app_with_a_program_and_other_tokens_has_the_same_document(memory: StepMemory) -> None:
    tokens = Tokens({TOKEN: [TokenScope.READ, TokenScope.AS_ANY_USER]})
    assert create_app(memory, tokens, runner=StepRunner(echo, memory)).openapi() == document()


def parameter(path: str, name: str) -> dict[str, Any]:
    """The document's entry of a parameter of a GET."""
    entries: list[dict[str, Any]] = document()["paths"][path]["get"]["parameters"]
    (found,) = [entry for entry in entries if entry["name"] == name]
    return found


def test_no_parameter_is_said_to_be_null() -> None:
    operations = [entry for path in document()["paths"].values() for entry in path.values()]
    parameters = [each for entry in operations for each in entry.get("parameters", ())]
    assert len(parameters) > 40
    null = {each["name"] for each in parameters if "null" in json.dumps(each["schema"])}
    assert null == {"metadata"}, "null is a value inside of it"


def test_what_a_text_has_to_be_is_said() -> None:
    metadata = parameter("/search", "metadata")["schema"]
    assert (metadata["type"], metadata["contentMediaType"]) == ("string", "application/json")
    assert metadata["contentSchema"]["type"] == "object"
    pattern = parameter("/runs/{run_id}/events", "last-event-id")["schema"]["pattern"]
    assert re.search(pattern, "run-1:12")
    assert re.search(pattern, "")
    for no_event in ("null", "run-1:", "run-1:x", "12"):
        assert not re.search(pattern, no_event)


def test_a_budget_that_can_be_too_small_says_so(served: Served) -> None:
    path = "/sessions/{session_id}/context"
    assert "422" in parameter(path, "budget")["description"]
    tight = served.client.get("/sessions/talk/context", params={"budget": 2})
    assert tight.status_code == 422


def test_a_changed_message_is_not_empty(served: Served) -> None:
    (_, parts, _) = document()["components"]["schemas"]["RetryAsked"]["properties"]["message"][
        "anyOf"
    ]
    assert (parts["type"], parts["minItems"]) == ("array", 1)
    body = {"sequence": 3, "message": []}
    answer = served.client.post("/sessions/talk/retry", json=body)
    assert answer.status_code == 422
    assert "at least 1 item" in answer.json()["detail"]


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["\x00", "a\x00b", "..", "../../etc", "%00", "'; DROP TABLE step;--", "𝕏" * 30]
    ),
)
PATHS = (
    "/sessions/{0}/steps",
    "/sessions/{0}/steps/{1}",
    "/sessions/{0}/attempts",
    "/sessions/{0}/context",
    "/sessions/{0}/compare?branch_a={1}&branch_b={1}",
    "/runs/{0}",
    "/runs/{0}/events",
    "/runs/{0}/outlook",
    "/search?q={0}",
    "/search?like={0}",
    "/search?q=x&session_id={0}&tools={0}&user_id={0}&metadata={0}",
    "/sessions?limit={1}&offset={1}",
    "/{0}",
    "/static/{0}",
)
NUMBERS = st.one_of(st.integers(), st.just(10**400), st.floats().map(str), st.text(max_size=5))


@seed(SEED)
@ANY_SPEED
@given(path=st.sampled_from(PATHS), text=HOSTILE, number=NUMBERS)
def test_no_address_gets_a_500(served: Served, path: str, text: str, number: Any) -> None:
    given = quote(text.encode("utf-8", "surrogatepass"), safe="")
    filled = path.format(given, quote(str(number).encode("utf-8", "surrogatepass"), safe=""))
    answer = served.client.get(filled)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"


BODIES = (
    "/sessions/talk/fork",
    "/sessions/talk/retry",
    "/chat/stream/v2",
    "/sessions/talk/resume",
    "/v1/chat/completions",
    "/v1/responses",
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just("\ud800")
)
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = ("sequence", "message", "session_id", "new_session_id", "user_id", "call_id", "allowed")
OPENAI_KEYS = ("model", "messages", "metadata", "stream", "n", "tools", "user", "input")


@seed(SEED)
@ANY_SPEED
@given(
    path=st.sampled_from(BODIES),
    body=st.one_of(ANY_JSON, st.dictionaries(st.sampled_from(KEYS + OPENAI_KEYS), ANY_JSON)),
)
def test_no_body_gets_a_500(served: Served, path: str, body: Any) -> None:
    headers = {"Content-Type": "application/json"}
    with served.client.stream("POST", path, content=json.dumps(body), headers=headers) as answer:
        said = answer.read()
    assert answer.status_code < 500, said
    refusal = "application/json" if path.startswith("/v1/") else "application/problem+json"
    kind = refusal if answer.status_code >= 400 else ""
    assert answer.headers.get("content-type", "").startswith(kind)


@pytest.mark.parametrize(
    "message", ["\x00", "a\x00b", "\u2028\r\n\r\nid: evil\n\ndata: {}", "🎉" * 99]
)
def test_a_strange_message_is_said_back(served: Served, message: str) -> None:
    events = served.chat("strange", message)
    assert events[-1].kind == "run_completed"
    assert [event.number for event in events] == list(range(1, len(events) + 1))


DEEP = '[{"type": "text", "text": ' + "[" * 300 + "]" * 300 + "}]"


@pytest.mark.parametrize(
    ("message", "status"),
    [(DEEP, 200), ('[{"type": "text", "n": 1e999}]', 200), ('[{"n": 123456789012345678901}]', 200)],
)
def test_what_json_cannot_hold_is_repaired_or_refused(
    served: Served, message: str, status: int
) -> None:
    body = f'{{"session_id": "odd", "message": {message}}}'
    headers = {"Content-Type": "application/json"}
    with served.client.stream("POST", "/chat/stream/v2", content=body, headers=headers) as answer:
        said = answer.read()
    assert answer.status_code in (status, 422), said
