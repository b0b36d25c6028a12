"""The page's view of who works on a memory, in a real browser."""

# Neither Playwright's objects nor DSPy are typed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# ruff: noqa: F811 - fixtures are named as what is given

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the page is served by the extra `server`")
pytest.importorskip("playwright.sync_api", reason="drives a browser")
pytest.importorskip("dbos", reason="the extra durable is not installed")

from server_cases import BROWSER, TOKEN, Told, serving
from test_page import FAINT, browser, page  # noqa: F401 - fixtures  # pyright: ignore[reportUnusedImport]
from test_page_runs import SIDEWAYS, UNNAMED
from test_work import ANN, CALLERS, begun

from hybridagi_steps import StepMemory
from hybridagi_steps.durable.session_runs import DurableRunner

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


def tells_the_caller(sent: Any) -> bool:
    return sent.url.endswith("/caller") and sent.ok


def test_work_is_shown_and_goes_on_to_its_session(page: Any, tmp_path: Path) -> None:
    told = Told()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
        serving(memory, told, CALLERS) as served,
        ThreadPoolExecutor(1) as apart,  # Playwright has an event loop of its own
    ):
        apart.submit(asyncio.run, durable.submit("waiting", "hello")).result()
        page.goto(f"{served.address}/#token={TOKEN}")
        page.get_by_role("link", name="Work").click()
        page.get_by_text("session-runs:default").wait_for()
        page.get_by_text("None: what is queued waits.").wait_for()
        headers = {"Authorization": f"Bearer {ANN}"}
        assert apart.submit(asyncio.run, begun(served.address, headers, "talked")).result() == 200
        session = page.get_by_role("link", name="talked")
        session.wait_for()  # the view looks again by itself
        page.screenshot(path=tmp_path / "work.png")
        for check in (FAINT, SIDEWAYS, UNNAMED):
            assert page.evaluate(check) == []
        for width in (320, 360, 390, 414, 430, 480, 520):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") == width
            leave = page.get_by_role("button", name="Leave").bounding_box()
            assert leave["x"] + leave["width"] <= width
        session.click()
        page.locator(".message").first.wait_for()
        told.end()
        page.get_by_role("button", name="Erase").wait_for()
        with page.expect_event("domcontentloaded"):  # pasted, and the page opens anew
            page.evaluate(f"void setTimeout(() => {{ location.hash = 'token={ANN}' }})")
        with page.expect_response(tells_the_caller):
            page.reload()
        said = served.client.get("/caller", headers=headers).json()
        assert said == {"scopes": ["append", "read"], "user_id": "ann"}
        page.evaluate("location.hash = '#/sessions/talked'")
        page.locator(".message").first.wait_for()
        for role, name in (("link", "Work"), ("button", "Erase")):
            assert page.get_by_role(role, name=name).count() == 0
        page.evaluate("location.hash = '#/work'")
        page.get_by_role("alert").get_by_text("of all users").wait_for()
        page.evaluate("location.hash = '#/search'")
        page.locator("input[name=session_id]").wait_for(state="attached")
        assert page.locator("input[name=user_id]").count() == 0
