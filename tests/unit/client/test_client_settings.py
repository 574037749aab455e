"""Settings, trace files, deadlines, and what the command says when something is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from client_fakes import FakeCompressor, MemoryRetriever, ScriptedModel, text_item, verdict
from rich.console import Console
from typer.testing import CliRunner

from canopy_backend.errors import CanopyError, DeadlineExceeded, InvalidRequest, ServerUnavailable
from canopy_backend.evidence import Decision, Trace
from canopy_client import LoopOptions, Orchestrator, trace
from canopy_client.cli import app, commands, mounted, render
from canopy_client.deadline import Deadline
from canopy_client.session import language_model
from canopy_client.settings import MASK, SMALL_MODEL, Settings
from canopy_local.settings import StackSettings


def test_arguments_come_before_the_environment_and_that_before_defaults() -> None:
    environment = {"CANOPY_K": "4", "CANOPY_URL": "env:1", "CANOPY_ROUTED": "yes", "MILVUS_URI": "m"}
    settings = Settings.load({"url": "flag:1", "k": None}, environment)
    assert (settings.url, settings.k, settings.routed, settings.max_rounds) == ("flag:1", 4, True, 3)
    assert settings.milvus() == "m"
    assert Settings.load({"home": Path("h")}, {}).milvus() == "h/milvus/canopy.db"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CANOPY_K": "many"}, "CANOPY_K"),
        ({"CANOPY_K": "0"}, "--k"),
        ({"CANOPY_TLS": "perhaps"}, "CANOPY_TLS"),
        ({"CANOPY_DEADLINE_S": "-1"}, "--deadline-s"),
        ({"CANOPY_K": "257"}, "--k: 257 is not a whole number from 1 to 256"),
        ({"CANOPY_FOLLOW_UP_K": "0"}, "--follow-up-k"),
        ({"CANOPY_MAX_ROUNDS": "11"}, "--max-rounds"),
        ({"CANOPY_TABLES": "some"}, "--tables"),
        ({"CANOPY_CRITIC": "nobody"}, "--critic"),
        ({"CANOPY_LLM_PARALLEL": "0"}, "--llm-parallel"),
    ],
)
def test_values_of_another_type_are_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Settings.load({}, environment)


def test_every_switch_of_a_question_has_a_setting(tmp_path: Path) -> None:
    environment = {
        "CANOPY_K": "5", "CANOPY_FOLLOW_UP_K": "3", "CANOPY_MAX_ROUNDS": "2", "CANOPY_COMPRESS": "no",
        "CANOPY_TABLES": "lookup", "CANOPY_ROUTED": "1", "CANOPY_CRITIC": "titles",
    }  # fmt: skip
    settings = Settings.load({}, environment)
    assert settings.loop_options(trace=True) == LoopOptions(
        k=5, follow_up_k=3, max_rounds=2, compress=False, tables="lookup", routed=True, trace=True
    )
    assert settings.critic == "titles"
    assert Settings.load({"home": tmp_path}, {}).loop_options() == LoopOptions()


@pytest.mark.parametrize(
    ("model", "given", "judge", "follow_up_k"),
    [
        (SMALL_MODEL, {}, "titles", 3),
        (SMALL_MODEL, {"k": 2}, "titles", 2),
        (SMALL_MODEL, {"follow_up_k": 7}, "titles", 7),
        (SMALL_MODEL, {"critic": "llm"}, "llm", None),
        (SMALL_MODEL, {"llm_url": "http://localhost:8000/v1"}, "llm", None),
        ("a-larger-model", {}, "llm", None),
        ("a-larger-model", {"critic": "titles"}, "titles", 3),
    ],
)
def test_names_are_followed_where_only_the_small_model_would_judge(
    tmp_path: Path, model: str, given: dict[str, object], judge: str, follow_up_k: int | None
) -> None:
    (tmp_path / model).mkdir()
    settings = Settings.load({"model_folder": tmp_path / model, **given}, {})
    assert settings.judged_by() == judge
    assert settings.loop_options().follow_up_k == follow_up_k


def test_the_local_stack_is_known_by_its_model(tmp_path: Path) -> None:
    assert Settings.load({"home": tmp_path}, {}).judged_by() == "llm"
    StackSettings(home=tmp_path).critic_model.mkdir(parents=True)
    assert Settings.load({"home": tmp_path}, {}).judged_by() == "titles"


def test_secrets_do_not_show() -> None:
    settings = Settings.load({"llm_key": "hush", "milvus_token": "root:hush"}, {})
    assert "hush" not in repr(settings)
    assert settings.shown()["llm_key"] == MASK
    assert settings.llm_key == "hush"


def test_every_setting_has_one_flag_one_variable_and_a_meaning() -> None:
    all_of_them = list(Settings.describe())
    assert len({one.flag for one in all_of_them}) == len({one.env for one in all_of_them}) == len(all_of_them)
    assert all(one.help for one in all_of_them)


def test_an_endpoint_needs_a_model_name() -> None:
    with pytest.raises(InvalidRequest, match="CANOPY_LLM_MODEL"):
        language_model(Settings.load({"llm_url": "http://x/v1"}, {}))


def test_deadlines() -> None:
    assert Deadline().timeout_s() is None
    assert Deadline().timeout_us() is None
    assert math.isinf(Deadline.after(None).remaining_s())
    assert 400 < Deadline.after(6000).sooner(500).remaining_s() <= 500
    assert 400 < Deadline.after(500).sooner(None).remaining_s() <= 500
    assert 400_000_000 < (Deadline.after(500).timeout_us() or 0) <= 500_000_000
    assert Deadline.after(-1).timeout_us() == 1
    with pytest.raises(DeadlineExceeded):
        Deadline.after(-1).timeout_s()


async def run(console: Console | None = None) -> Any:
    item = text_item("a", title="[bold]A[/bold]")
    llm = ScriptedModel(critic=[verdict("no", missing="m", query="q2"), verdict("yes")], reader=["So [1]."])
    retriever = MemoryRetriever({"q": [item], "q2": [text_item("b")]})
    events = []
    async for event in Orchestrator(retriever, FakeCompressor(), llm).events("q"):
        events.append(event)
        if console is not None:
            render.event(console, event)
    return events[-1].answer


async def test_a_trace_file_holds_the_whole_answer(tmp_path: Path) -> None:
    answer = await run()
    path = trace.write(tmp_path / "traces", [answer], model="m", settings={"k": "10"})
    content = trace.read(path)
    assert content.answers == [answer]
    assert json.loads(path.read_text())["answers"][0]["rounds"][0]["verdict"]["query"] == "q2"
    path.write_text('{"format": 9}')
    with pytest.raises(InvalidRequest, match="trace"):
        trace.read(path)


async def test_a_run_is_shown_without_reading_titles_as_markup() -> None:
    console = Console(record=True, width=100, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        await run(console)
    shown = capture.get()
    for words in ("round 1", "[bold]A[/bold]", "critic: not sufficient", "critic: sufficient", "So [1].", "50%"):
        assert words in shown


async def test_control_characters_do_not_reach_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07 \x9b31m\x00\r\x7f end"
    item = text_item(hostile, hostile, title=hostile)
    llm = ScriptedModel(critic=[verdict("no", missing=hostile, query=hostile, answer=hostile)], reader=[hostile])
    retriever = MemoryRetriever({"q\x1b[2J": [item]})
    console = Console(width=100, force_terminal=False)
    with console.capture() as capture:
        render.question(console, "q\x1b[2J")
        async for event in Orchestrator(retriever, FakeCompressor(), llm).events("q\x1b[2J"):
            render.event(console, event)
    shown = capture.get()
    assert "␛[2J" in shown
    assert not set(shown) & {chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) != "\n"}


def test_a_tree_shows_scores_and_what_became_of_each_node() -> None:
    from client_fakes import make_evidence
    from msgspec.structs import replace

    nodes = [Decision(0, -1, 0, 2, 0, 0.4, "split"), Decision(1, 0, 0, 1, 1, 0.5, "kept")]
    nodes.append(Decision(2, 0, 1, 2, 1, 0.1, "dropped"))
    evidence = replace(make_evidence(text_item("a"), "First words."), trace=Trace(nodes))
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render.evidence_tree(evidence))
    shown = capture.get()
    for words in ("split +0.400 [0, 2)", "kept +0.500 [0, 1)  First words.", "dropped +0.100"):
        assert words in shown


def test_a_tables_node_shows_its_first_row_and_not_the_header() -> None:
    from client_fakes import make_evidence
    from msgspec.structs import replace

    table = "| glaze | cone |\n| --- | --- |\n| celadon | 9 |"
    evidence = replace(make_evidence(text_item("a"), table), trace=Trace([Decision(0, -1, 0, 1, 0, 0.4, "kept")]))
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render.evidence_tree(evidence))
    assert "celadon" in capture.get()
    assert "cone" not in capture.get()


runner = CliRunner()


def test_a_missing_file_is_one_line_and_exit_code_1() -> None:
    result = runner.invoke(app.build(), ["compress", "--query", "q", "no-such-file.txt"])
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: no-such-file.txt: no such file"


def test_bad_usage_is_exit_code_2() -> None:
    for arguments in (["compress", "file.txt"], ["ask"], ["nonsense"], ["ask", "q", "--k", "x"]):
        assert runner.invoke(app.build(), arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [(ServerUnavailable("no server"), "canopy up"), (ValueError("odd"), "unexpected ValueError: odd")],
)
def test_errors_are_one_line_unless_debugged(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(commands, "open_client", fail)
    file = tmp_path / "a.txt"
    file.write_text("Some words.")
    arguments = ["compress", "-q", "q", str(file)]
    result = runner.invoke(app.build(), arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert runner.invoke(app.build(), ["--debug", *arguments]).exception is error


def test_config_is_printed_as_json() -> None:
    result = runner.invoke(app.build(), ["config", "--json", "--k", "3"], env={"CANOPY_URL": "host:7"})
    shown = json.loads(result.stdout)
    assert (shown["k"], shown["url"]) == ("3", "host:7")


def test_a_room_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CanopyError, match=r"canopy-triton\[export\]"):
        mounted.room("canopy_nowhere.command", "export", "export")
    monkeypatch.setitem(mounted.MOUNTED, "up", mounted.Mounted("canopy_nowhere.command", "h", "dev"))
    result = runner.invoke(app.build(), ["up"])
    assert result.exit_code == 1
    assert "canopy-triton[dev]" in result.stderr
    assert "up" in runner.invoke(app.build(), ["--help"]).stdout


def test_clients_follow_the_ports_of_the_local_stack_unless_told_an_endpoint() -> None:
    moved = {"CANOPY_GRPC_PORT": "18001", "CANOPY_CRITIC_GRPC_PORT": "19001"}
    settings = Settings.load({}, moved)
    assert (settings.url, settings.critic_url) == ("localhost:18001", "localhost:19001")
    assert Settings.load({}, {**moved, "CANOPY_URL": "far:8001"}).url == "far:8001"
    assert Settings.load({"url": "flag:8001"}, moved).url == "flag:8001"
    with pytest.raises(InvalidRequest, match="CANOPY_GRPC_PORT"):
        Settings.load({}, {"CANOPY_GRPC_PORT": "many"})
