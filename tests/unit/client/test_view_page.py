"""The page as text: what is in it, what may act in it, and the command that writes it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import webbrowser
from collections import Counter
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from canopy_backend.errors import InvalidRequest
from canopy_client import trace
from canopy_client.cli import app
from canopy_client.cli import view as command
from canopy_client.view import page, pictures
from canopy_client.view.page import STYLES, asset, bundle, data
from tests.unit.client import view_data

ASSETS = resources.files("canopy_client.view") / "assets"
runner = CliRunner()


class Elements(HTMLParser):
    """Start tags with their attributes, and what scripts and styles hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.held: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, text: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.held.append(text)


def content_of(text: str, start: str) -> str:
    return text.split(start, 1)[1].split("</", 1)[0]


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_names_the_one_script_and_the_one_style_and_nothing_else() -> None:
    text = page(view_data.example())
    parsed = Elements(text)
    (policy,) = [attrs["content"] for tag, attrs in parsed.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules == {
        "default-src": "'none'",
        "script-src": digest(content_of(text, '<script type="module">')),
        "style-src": digest(content_of(text, "<style>")),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert text.index("Content-Security-Policy") < min(text.index("<style"), text.index("<script"))


def test_nothing_is_loaded_from_anywhere() -> None:
    parsed = Elements(page(view_data.example()))
    counted = Counter(tag for tag, _ in parsed.tags)
    assert (counted["script"], counted["style"], counted["link"], counted["img"]) == (3, 1, 0, 0)
    for _, attrs in parsed.tags:
        assert not {"src", "srcset", "style", "onload", "onerror", "onclick"} & attrs.keys()
        assert (attrs.get("href") or "#").startswith("#")
    for one in ASSETS.iterdir():
        source = one.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|WebSocket|sendBeacon|localStorage", source), (
            one.name
        )
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", source), (
            one.name
        )


def test_the_trace_in_the_page_is_the_trace_and_cannot_leave_its_element() -> None:
    content = view_data.example()
    text = page(content)
    held = content_of(text, 'id="trace">')
    assert not re.search(r"[<>&\u2028\u2029]", held)
    assert msgspec.json.decode(held.encode(), type=trace.TraceFile) == content
    assert text.count("</script>") == 3
    assert "<script>window.hacked" not in text


@given(st.text())
def test_any_text_comes_through_and_holds_no_mark(text: str) -> None:
    held = data(view_data.content(replace_question(text)))
    assert not set("<>&\u2028\u2029") & set(held)
    assert json.loads(held)["answers"][0]["question"] == text


BASE = view_data.example().answers[0]


def replace_question(text: str):
    return replace(BASE, question=text)


def test_braces_in_a_trace_are_not_places_of_the_template() -> None:
    text = page(view_data.content(replace_question("{{script}} {{style}} {{data}} {{other}}")))
    assert '"question":"{{script}} {{style}} {{data}} {{other}}"' in text
    outside = text.replace(content_of(text, 'id="trace">'), "")
    assert "{{" not in outside


def test_modules_share_one_scope_without_a_clash() -> None:
    script = bundle("main.js")
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script, re.M)
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert not re.search(r"^\s*(import|export)\b", script, re.M)
    assert "</script" not in script.lower()
    assert "<!--" not in script
    for module in (one.name for one in ASSETS.iterdir() if one.name.endswith(".js")):
        exported = re.findall(r"^export (?:function|const) (\w+)", asset(module), re.M)
        assert all(name in names for name in exported), f"{module} is not in the page"


def test_modules_import_only_what_is_exported_and_use_it() -> None:
    for one in ASSETS.iterdir():
        if one.name.endswith(".js"):
            source = asset(one.name)
            for listed, origin in re.findall(r'^import \{([^}]*)\} from "\./(\w+\.js)";$', source, re.M):
                for name in (part.strip() for part in listed.split(",")):
                    assert re.search(rf"^export (?:function|const) {name}\b", asset(origin), re.M), (
                        f"{one.name}: {name}"
                    )
                    assert len(re.findall(rf"\b{name}\b", source)) > 1, f"{one.name} does not use {name}"


def test_sources_stay_small_and_are_all_in_the_page() -> None:
    for one in ASSETS.iterdir():
        assert len(one.read_text(encoding="utf-8").splitlines()) <= 400, one.name
    assert {one.name for one in ASSETS.iterdir() if one.name.endswith(".css")} == set(STYLES)
    assert len(page(view_data.content(BASE))) < 90_000


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def with_picture(uri: str) -> trace.TraceFile:
    item = replace(view_data.FLAG, uri=uri)
    cited = replace(BASE.evidence[2], original=replace(BASE.evidence[2].original, item=item))
    return view_data.content(replace(BASE, evidence=[*BASE.evidence[:2], cited, *BASE.evidence[3:]]))


def test_a_picture_under_the_folder_is_in_the_page_and_the_policy_lets_it_show(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "flag.png").write_bytes(PNG)
    content = with_picture("images/flag.png")
    shown = pictures(content, tmp_path)
    assert shown == {"images/flag.png": "data:image/png;base64," + base64.b64encode(PNG).decode()}
    assert "img-src data:;" in page(content, shown)
    assert "img-src" not in page(content)


@pytest.mark.parametrize(
    "uri",
    ["../secret.png", "{root}/secret.png", "link.png", "text.png", "big.png", "vector.svg", "none.png", "images", "\0"],
)
def test_no_other_file_is_read_for_a_picture(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    (folder / "images").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "text.png").write_text("key = secret")
    (folder / "big.png").write_bytes(PNG + bytes(200))
    (folder / "vector.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    monkeypatch.setattr("canopy_client.view.images.MAX_BYTES", 150)
    assert pictures(with_picture(uri.format(root=tmp_path)), folder) == {}


def test_all_pictures_together_have_a_limit_and_the_folder_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.setattr("canopy_client.view.images.MAX_TOTAL_BYTES", len(PNG) - 1)
    assert pictures(with_picture("a.png"), tmp_path) == {}
    with pytest.raises(InvalidRequest, match="--images"):
        pictures(with_picture("a.png"), tmp_path / "none")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_bytes(msgspec.json.encode(view_data.example()))
    return path


def test_the_command_writes_beside_the_trace_or_where_told(written: Path, tmp_path: Path) -> None:
    done = runner.invoke(app.build(), ["view", str(written), "--no-open"])
    assert (done.exit_code, done.stdout.strip()) == (0, f"page: {tmp_path / 't.html'}")
    told = tmp_path / "other.html"
    done = runner.invoke(app.build(), ["view", str(written), "--no-open", "--out", str(told), "--json"])
    assert json.loads(done.stdout) == {"page": str(told), "bytes": told.stat().st_size}
    assert told.read_bytes() == (tmp_path / "t.html").read_bytes(), "the same trace makes the same page"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other.html", "t.html", "t.json"]


@pytest.mark.parametrize(("screen", "asked", "opens"), [("", True, False), (":0", True, True), (":0", False, False)])
def test_a_browser_opens_only_where_there_is_a_screen(
    screen: str, asked: bool, opens: bool, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(command.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.setenv("WAYLAND_DISPLAY", "")
    assert runner.invoke(app.build(), ["view", str(written), *([] if asked else ["--no-open"])]).exit_code == 0
    assert opened == ([written.with_suffix(".html").as_uri()] if opens else [])


def test_the_trace_is_not_overwritten(written: Path) -> None:
    before = written.read_bytes()
    done = runner.invoke(app.build(), ["view", str(written), "--no-open", "--out", str(written)])
    assert done.exit_code == 1
    assert "is the trace itself" in done.stderr
    assert written.read_bytes() == before


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"format": 1}', "field 'format': 1"),
        (b'{"fo', "not a whole JSON file"),
        (b'{"format": 2, "created": "", "model": "", "settings": {}, "answers": []}', "field 'answers': empty"),
    ],
)
def test_a_bad_file_is_one_line_and_no_page(payload: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(payload)
    done = runner.invoke(app.build(), ["view", str(path), "--no-open"])
    assert done.exit_code == 1
    assert words in done.stderr
    assert "bad.json" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not path.with_suffix(".html").exists()
