"""What docs/trace.md shows is run: its commands, in order, with what they print, and its Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from canopy_client import trace
from canopy_client.view.check import check

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
CANOPY = Path(sys.executable).with_name("canopy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project's examples in a folder of the test's own, where pages may be written."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.docs
def test_commands_of_the_page_run_and_print_what_it_shows(folder: Path) -> None:
    ran = 0
    for body in (body for kind, body in FENCE.findall(PAGE) if kind == "console"):
        for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M):
            words = shlex.split(line)
            assert words[0] == "canopy"
            environment = {**os.environ, "COLUMNS": "100"}
            done = subprocess.run(
                [str(CANOPY), *words[1:]], capture_output=True, text=True, timeout=120, cwd=folder, env=environment,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert done.stdout == shown
            ran += 1
    assert ran == 2
    assert (folder / "pictures.html").stat().st_size > (folder / "trace.html").stat().st_size, "pictures are in it"


@pytest.mark.docs
def test_the_python_of_the_page_runs(folder: Path) -> None:
    (code,) = [body for kind, body in FENCE.findall(PAGE) if kind == "python"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " → " in done.stdout


def test_the_example_trace_is_whole() -> None:
    content = trace.read(ROOT / "examples" / "trace.json")
    check(content)
    for answer in content.answers:
        for one in answer.evidence:
            assert one.evidence.trace, "every item can be replayed"
            assert one.original, "in its own words"
    assert {one.evidence.modality for answer in content.answers for one in answer.evidence} == {
        "text", "table", "video", "image",
    }  # fmt: skip
    assert any(len(answer.rounds) > 1 for answer in content.answers)
