"""Secrets of settings stay out of everything that is printed, logged, raised or written, at the debug level too."""

from __future__ import annotations

import importlib.util
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import get_type_hints

import httpx
import pytest
from typer.testing import CliRunner

from canopy_backend.errors import CanopyError, CriticError, InvalidRequest
from canopy_client import telemetry, trace
from canopy_client.channels import check_target
from canopy_client.cli import app
from canopy_client.deadline import Deadline
from canopy_client.llm import Message, OpenAILanguageModel
from canopy_client.session import language_model
from canopy_client.settings import Settings
from canopy_milvus.connection import Connection

SECRET = "S3CRET-of-the-test"
CHAT = [Message("user", "Hi")]
ADDRESS = f"http://user:{SECRET}@127.0.0.1:1/v1?key={SECRET}"


class _Echo(BaseHTTPRequestHandler):
    """A server that repeats what it was sent, as some do with a key that they refuse."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        content = f"no such key: {self.headers['Authorization']}".encode()
        self.send_response(401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.fixture
def closed() -> Iterator[int]:
    """A port of this machine on which nobody listens."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def told(error: BaseException) -> str:
    """An error with its causes and traceback, as ``--debug`` shows it."""
    return "".join(traceback.format_exception(error)) + repr(error)


def secret_settings() -> dict[str, str]:
    """A value with the sentinel for each setting that can hold one: the secret ones, and addresses."""
    kinds = get_type_hints(Settings)
    values = {}
    for one in Settings.describe():
        if one.secret:
            values[one.name] = SECRET
        elif kinds[one.name] is str and ("url" in one.name or "uri" in one.name):
            values[one.name] = ADDRESS
    # A collector's address may hold no query, and needs packages of an extra.
    values["tracing_url"] = ADDRESS.partition("?")[0] if importlib.util.find_spec("opentelemetry.exporter") else ""
    return values


def test_every_secret_and_every_address_is_tried() -> None:
    found = {"url", "critic_url", "llm_url", "llm_key", "milvus_uri", "milvus_token", "tracing_url"}
    assert secret_settings().keys() == found


def test_settings_show_none_in_repr_table_json_and_trace(tmp_path: Path) -> None:
    settings = Settings.load(secret_settings(), {})
    for text in (repr(settings), str(settings), f"{settings}", str(settings.shown())):
        assert SECRET not in text
    assert settings.shown()["llm_url"] == "http://***@127.0.0.1:1/v1?***"
    assert settings.shown()["llm_key"] == "***"
    environment = {one.env: secret_settings().get(one.name, "") for one in Settings.describe()}
    for arguments in (["config"], ["config", "--json"], ["--debug", "config"], ["config", "--help"], ["ask", "--help"]):
        result = CliRunner().invoke(app.build(), arguments, env={**environment, "COLUMNS": "400"})
        assert result.exit_code == 0
        assert SECRET not in result.output + result.stderr
    path = trace.write(tmp_path, [], model="m", settings=settings.shown())
    assert SECRET not in path.read_text()


@pytest.mark.parametrize(
    "arguments",
    [["ask", "Who?"], ["index", "FILE"], ["compress", "-q", "Who?", "FILE"], ["probe", "--critic", "--timeout-s", "1"]],
)
@pytest.mark.parametrize("flags", [[], ["--debug"]])
def test_commands_that_fail_tell_none(
    arguments: list[str], flags: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Some words.")
    environment = {one.env: secret_settings().get(one.name, "") for one in Settings.describe()}
    environment |= {"CANOPY_HOME": str(tmp_path), "CANOPY_DEADLINE_S": "0.5", "CANOPY_LLM_MODEL": "m"}
    words = [str(file) if word == "FILE" else word for word in arguments]
    result = CliRunner().invoke(app.build(), [*flags, *words], env=environment)
    assert result.exit_code != 0
    shown = result.output + result.stderr + caplog.text + (told(result.exception) if result.exception else "")
    assert SECRET not in shown
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in written)


@pytest.mark.parametrize("form", ["http://user:{secret}@{place}", "http://{place}", "http://{secret}@{place}"])
@pytest.mark.parametrize("key", [SECRET, ""])
async def test_a_language_model_tells_none(form: str, key: str, echo: str, caplog: pytest.LogCaptureFixture) -> None:
    model = OpenAILanguageModel(form.format(secret=SECRET, place=echo), model="m", api_key=key)
    with pytest.raises(CriticError, match="HTTP 401") as caught:
        await model.generate(CHAT, max_tokens=5, deadline=Deadline.after(10))
    await model.close()
    assert SECRET not in told(caught.value) + model.name + repr(vars(model)["_client"]) + caplog.text
    assert "HTTP Request: POST http://127.0.0.1" in caplog.text  # the library's own line was looked at


async def test_credentials_of_an_address_are_sent_where_there_is_no_key() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"choices": [{"message": {"content": "a"}}]})

    for key in ("", "the-key"):
        transport = httpx.MockTransport(handler)
        model = OpenAILanguageModel("http://us%40er:p%3Aw@llm/v1", model="m", api_key=key, transport=transport)
        assert model.name == "m@http://llm/v1"
        await model.generate(CHAT, max_tokens=5, deadline=Deadline.after(5))
        await model.close()
    assert [str(one.url) for one in seen] == ["http://llm/v1/chat/completions"] * 2
    assert seen[0].headers["Authorization"] == "Basic dXNAZXI6cDp3"
    assert seen[1].headers["Authorization"] == "Bearer the-key"


@pytest.mark.parametrize("key", [f"{SECRET}\n", f" {SECRET}", f"{SECRET}\r\nX: y", f"{SECRET}ä", f"\x00{SECRET}"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str) -> None:
    with pytest.raises(InvalidRequest, match="no header can carry") as caught:
        language_model(Settings.load({"llm_url": "http://llm/v1", "llm_model": "m", "llm_key": key}, {}))
    assert SECRET not in told(caught.value)


@pytest.mark.parametrize("password", [f"{SECRET}/more", f"1/{SECRET}", f"{SECRET}?x", f"{SECRET}#x"])
def test_a_password_that_nobody_encoded_is_not_told(password: str, caplog: pytest.LogCaptureFixture) -> None:
    address = f"http://user:{password}@127.0.0.1:1/v1"
    with pytest.raises(InvalidRequest, match="%XX") as caught:
        OpenAILanguageModel(address, model="m")
    with pytest.raises(InvalidRequest, match="%XX") as refused:
        Connection(address, "", 0.0)
    assert SECRET not in told(caught.value) + told(refused.value) + caplog.text
    assert SECRET not in Settings.load({"llm_url": address, "milvus_uri": address}, {}).shown()["llm_url"]


@pytest.mark.parametrize("scheme", ["http", "https", "nonsense"])
def test_a_store_tells_none(scheme: str, closed: int, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CanopyError) as caught:
        Connection(f"{scheme}://user:{SECRET}@127.0.0.1:{closed}", SECRET, time.monotonic() + 1.0)
    assert SECRET not in told(caught.value) + caplog.text
    assert "***@127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("url", [f"user:{SECRET}@host:8001", f"http://user:{SECRET}@host:8001", f"http://h?k={SECRET}"])
def test_a_server_is_never_named_with_credentials(url: str) -> None:
    with pytest.raises(InvalidRequest, match="expected host:port") as caught:
        check_target(url)
    assert SECRET not in told(caught.value)
    assert check_target("unix:@abstract") == "unix:@abstract"


@pytest.mark.parametrize(
    "form", ["http://user:{secret}@127.0.0.1:{port}/v1/traces", "http://{secret}@127.0.0.1:{port}/"]
)
def test_a_collector_tells_none(form: str, closed: int, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with telemetry.exporting(form.format(secret=SECRET, port=closed), 1.0), telemetry.span("x"):
        pass
    assert SECRET not in caplog.text


def test_a_collectors_address_with_a_query_is_refused_unseen() -> None:
    for address in (f"http://h:1/v1/traces?key={SECRET}", f"http://user:{SECRET}/x@h/v1/traces"):
        with pytest.raises(InvalidRequest, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
            telemetry._collector(address)
        assert SECRET not in told(caught.value)
    assert telemetry._collector("http://u%40x:p@h/v1/traces") == (
        "http://h/v1/traces",
        {"authorization": "Basic dUB4OnA="},
    )
    assert telemetry._collector("http://h:4318/v1/traces") == ("http://h:4318/v1/traces", {})
