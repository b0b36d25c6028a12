"""A parameter that takes one value and is sent twice is refused, by every route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")

from server_cases import Served, document, problem

PLACES = {"session_id": "talk", "run_id": "run-1", "step_id": "act", "sequence": 1}
VALUES = {"integer": ["1", "2"], "number": ["0.1", "0.2"], "boolean": ["true", "false"]}


def parameters(*, several: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the parameters of every route that take one value, or several."""
    for path, entry in document()["paths"].items():
        for method, route in entry.items():
            for each in route.get("parameters", ()):
                is_array = each["schema"].get("type") == "array"
                if each["in"] != "path" and is_array == several:
                    yield method.upper(), path, each


def send_twice(served: Served, method: str, path: str, parameter: dict[str, Any]) -> httpx.Response:
    """Send a parameter with two values."""
    schema = parameter["schema"]
    schema = schema.get("items", schema)
    values = schema.get("enum", VALUES.get(schema.get("type"), ["ann", "bob"]))[:2]
    pairs = [(parameter["name"], value) for value in values]
    where: dict[str, Any] = {"params" if parameter["in"] == "query" else "headers": pairs}
    return served.client.request(method, path.format(**PLACES), **where)


@pytest.mark.parametrize(("method", "path", "parameter"), [*parameters(several=False)])
def test_one_value_is_not_sent_twice(
    still: Served, method: str, path: str, parameter: dict[str, Any]
) -> None:
    answer = problem(send_twice(still, method, path, parameter), 422)
    wrong = [each["field"] for each in answer["errors"] if "sent twice" in each["message"]]
    assert wrong == [f"{parameter['in']}.{parameter['name']}"]


@pytest.mark.parametrize(("method", "path", "parameter"), [*parameters(several=True)])
def test_several_values_are_sent_one_by_one(
    still: Served, method: str, path: str, parameter: dict[str, Any]
) -> None:
    assert "sent twice" not in send_twice(still, method, path, parameter).text
