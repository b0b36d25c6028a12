"""Who may use the HTTP service: tokens and their scopes, Host, Origin, and what answers carry."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

import httpx
from server_cases import SCOPED, TOKEN, Served, echo, problem, serving

from hybridagi_steps import StepMemory, errors
from hybridagi_steps.server.tokens import (
    SHORTEST_TOKEN,
    Caller,
    Tokens,
    TokenScope,
    new_token,
    read_tokens,
)


class TestWhoMayComeIn:
    @pytest.mark.parametrize(
        "header",
        [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü✓"],
    )
    def test_without_the_token_everything_is_401(self, still: Served, header: str | None) -> None:
        headers = [] if header is None else [(b"Authorization", header.encode())]
        for method, path in (
            ("GET", "/sessions"),
            ("GET", "/search?q=x"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", "/nothing"),
            ("POST", "/"),
            ("POST", "/chat/stream/v2"),
            ("DELETE", "/sessions/talk/steps?start_seq=1"),
        ):
            answer = httpx.request(method, still.address + path, headers=headers)
            problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"

    def test_401_comes_before_the_body_is_read(self, still: Served) -> None:
        host, port = still.client.base_url.host, still.client.base_url.port

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(host, port)
            head = "POST /chat/stream/v2 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n"
            writer.write(head.encode())
            said = await asyncio.wait_for(reader.readline(), 5)
            writer.close()
            return said

        assert asyncio.run(ask()).startswith(b"HTTP/1.1 401 ")

    def test_the_page_and_the_sign_of_life_are_open(self, still: Served) -> None:
        page = httpx.get(still.address)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert httpx.get(f"{still.address}/healthz").json()["status"] == "ok"
        for path in (
            "app.js",
            "styles.css",
            "views/sessions.js",
            "vendor/htm_preact_standalone.js",
        ):
            assert httpx.get(f"{still.address}/static/{path}").status_code == 200

    @pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/static/app.js"])
    def test_what_is_open_answers_head_as_it_answers_get(self, still: Served, path: str) -> None:
        head, whole = (httpx.request(how, still.address + path) for how in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert int(head.headers["content-length"]) == len(whole.content)

    @pytest.mark.parametrize(
        ("method", "path", "scope"),
        [
            ("GET", "/sessions", TokenScope.READ),
            ("POST", "/sessions/talk/fork", TokenScope.APPEND),
            ("DELETE", "/sessions/talk/steps?start_seq=4", TokenScope.DELETE),
        ],
    )
    def test_a_token_does_what_its_scope_allows(
        self, served: Served, method: str, path: str, scope: TokenScope
    ) -> None:
        body = {"sequence": 1} if method == "POST" else None
        for given, token in SCOPED.items():
            headers = {"Authorization": f"Bearer {token}"}
            answer = httpx.request(method, served.address + path, headers=headers, json=body)
            allowed = given in (scope, TokenScope.ADMIN)
            assert answer.status_code == (200 if allowed else 403), (given, answer.text)

    @pytest.mark.parametrize(
        "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "[::2]"]
    )
    def test_a_foreign_host_is_421(self, still: Served, host: str) -> None:
        problem(still.client.get("/sessions", headers={"Host": host}), 421)
        problem(httpx.get(still.address, headers={"Host": host}), 421)

    @pytest.mark.parametrize(
        "host",
        [
            "user@127.0.0.1",
            "user:secret@127.0.0.1:80",
            "localhost:80@evil.example",
            "[::1]evil.example",
            "[::1",
            "localhost:x",
            "localhost/evil",
            "local host",
        ],
    )
    def test_what_is_no_host_is_400(self, still: Served, host: str) -> None:
        found = problem(still.client.get("/sessions", headers={"Host": host}), 400)
        assert "Host header" in found["detail"]
        problem(httpx.get(still.address, headers={"Host": host}), 400)

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "[::1]:8377", "127.0.0.1:9"])
    def test_this_machine_is_no_foreign_host(self, still: Served, host: str) -> None:
        assert still.client.get("/sessions", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize(
        "origin",
        ["null", "http://evil.example", "http://127.0.0.1:1", "file://", "http://127.0.0.1.evil"],
    )
    def test_a_foreign_origin_is_403(self, still: Served, origin: str) -> None:
        problem(still.client.get("/sessions", headers={"Origin": origin}), 403)
        problem(still.client.options("/sessions", headers={"Origin": origin}), 403)

    def test_its_own_page_is_no_foreign_origin(self, still: Served) -> None:
        answer = still.client.get("/sessions", headers={"Origin": still.address})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]

    def test_every_answer_carries_the_strict_policy(self, still: Served) -> None:
        anonymous = httpx.get(f"{still.address}/sessions")
        answers = [still.client.get(path) for path in ("/", "/sessions", "/none", "/static/app.js")]
        for answer in (anonymous, *answers):
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"

    def test_the_token_is_in_no_log(
        self, filled: StepMemory, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG), serving(filled, echo) as served:
            served.chat("talk", "hello")
            served.client.get("/nothing")
            httpx.get(f"{served.address}/sessions", headers={"Authorization": "Bearer wrong-one"})
        own = [
            record for record in caplog.records if not record.name.startswith(("httpx", "httpc"))
        ]
        said = "\n".join(record.getMessage() for record in own)
        assert TOKEN not in said
        assert "wrong-one" not in said


class TestTokens:
    def test_a_file_names_tokens_their_scopes_and_whose_they_are(self) -> None:
        made, line = new_token(Caller(frozenset({TokenScope.READ}), "ann #1", frozenset({"a"})))
        read = read_tokens(
            f"# readers\nabcdefghijklmnop read,as-any-user\n\n{line}\n"
            "qrstuvwxyzabcdef read,append user=bob # w\n"
        )
        reads, writes = frozenset({TokenScope.READ}), frozenset({TokenScope.APPEND})
        assert list(read.values()) == [
            Caller(reads | {TokenScope.AS_ANY_USER}),
            Caller(reads, "ann #1", frozenset({"a"})),
            Caller(reads | writes, "bob"),
        ]
        assert made not in line
        found = Tokens(read).caller(made.encode())
        assert found == read[line.split()[0]]
        assert Tokens(read).caller(line.split()[0].encode()) is None

    @pytest.mark.parametrize("line", ["abcdefghijklmnop read", "abcdefghijklmnop read,append"])
    def test_a_token_that_is_nobodys_has_to_say_that_it_is_everybodys(self, line: str) -> None:
        with pytest.raises(errors.InvalidSettingError, match=r"line 1.*as-any-user"):
            read_tokens(line)

    @pytest.mark.parametrize(
        "line", ["secret-of-mine", "secret-of-mine fly", "a b c", "sha256:secret read user=ann"]
    )
    def test_a_line_that_says_something_else_is_refused_without_repeating_it(
        self, line: str
    ) -> None:
        with pytest.raises(errors.InvalidSettingError, match="line 1") as refused:
            read_tokens(line)
        assert "secret" not in str(refused.value)

    def test_a_token_stands_on_one_line(self) -> None:
        made, line = new_token(Caller(frozenset({TokenScope.READ}), "ann"))
        with pytest.raises(errors.InvalidSettingError, match=r"line 3 .*line 1;") as refused:
            read_tokens(f"{line}\n\n{made} read,append user=bob\n")
        for secret in (made, line.split()[0].removeprefix("sha256:")):
            assert secret not in str(refused.value)

    def test_the_documentation_says_how_long_one_is(self) -> None:
        page = Path(__file__).parents[2] / ".github" / "docs" / "server.md"
        said = " ".join(page.read_text("utf-8").split())
        assert f"A token has at least {SHORTEST_TOKEN} ASCII characters" in said

    @pytest.mark.parametrize("token", ["", "short", "ünguessable-but-not-ascii"])
    def test_a_token_that_is_no_good_is_refused(self, token: str) -> None:
        with pytest.raises(errors.InvalidSettingError):
            Tokens({token: [TokenScope.ADMIN]})
        with pytest.raises(errors.InvalidSettingError):
            Tokens({})
