"""What the probe makes of a busy server and of a dead one; the real server's processes die in the integration test."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from canopy_client.cli.app import build


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A port that takes connections and never answers, as of a server that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(build(), ["probe", "--timeout-s", "0.3", *arguments])
    return done.exit_code, done.output


def test_no_answer_in_time_fails_and_is_called_busy(silent_url: str) -> None:
    code, shown = run("--url", silent_url)
    assert code == 1
    assert shown.startswith("evidence is BUSY: DeadlineExceeded: ")
    assert shown.count("\n") == 1


def test_a_busy_server_is_not_restarted(silent_url: str) -> None:
    code, shown = run("--url", silent_url, "--busy-passes", "--json")
    assert code == 0
    payload = json.loads(shown)
    assert payload["passed"] is True
    assert payload["servers"]["evidence"] | {"seconds": 0, "error": ""} == {
        "passed": False, "seconds": 0, "error": "", "busy": True,
    }  # fmt: skip


def test_a_server_that_is_gone_is_not_busy() -> None:
    code, shown = run("--url", "127.0.0.1:1", "--busy-passes", "--timeout-s", "60")
    assert code == 1
    assert shown.startswith("evidence FAILS: ServerUnavailable: ")


def test_both_servers_stand_on_one_line(silent_url: str) -> None:
    code, shown = run("--url", "127.0.0.1:1", "--critic", "--critic-url", silent_url)
    assert code == 1
    assert shown.startswith("evidence FAILS: ")
    assert "; critic is BUSY: " in shown


def test_no_server_to_ask_is_told() -> None:
    code, _ = run("--no-evidence")
    assert code == 1
