"""The examples in other languages against the real server, where their tools are."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.docs, pytest.mark.server]

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "examples" / "clients"
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def protoset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("protocol") / "triton.protoset"
    subprocess.run([sys.executable, str(CLIENTS / "protoset.py"), str(path)], check=True)
    return path


def test_node_prints_what_the_page_shows(evidence_url: str, protoset: Path, tmp_path: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("Node.js is not installed")
    for name in ("package.json", "compress.mjs"):
        shutil.copy2(CLIENTS / name, tmp_path / name)
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    try:
        subprocess.run(install, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("npm cannot install the example's packages")
    done = subprocess.run(
        ["node", "compress.mjs", evidence_url, str(protoset)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = re.search(r"^\$ node compress\.mjs .*\n((?:.+\n)+?)```", PAGE, re.M)
    assert shown is not None
    assert done.stdout == shown[1]


def test_grpcurl_gets_evidence(evidence_url: str, protoset: Path) -> None:
    program = shutil.which("grpcurl")
    if program is None:
        pytest.skip("grpcurl is not installed")
    block = re.search(r"ModelInfer <<END\n(.*?)\nEND\n", PAGE, re.S)
    assert block is not None
    # The shell fills in the strings, as on the page.
    request = subprocess.run(["bash", "-c", f"cat <<END\n{block[1]}\nEND"], capture_output=True, text=True, check=True)
    command = [program, "-plaintext", "-protoset", str(protoset), "-d", "@", evidence_url]
    done = subprocess.run(
        [*command, "inference.GRPCInferenceService/ModelInfer"],
        input=request.stdout, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    (raw,) = reply.get("raw_output_contents") or reply["rawOutputContents"]
    assert json.loads(base64.b64decode(raw)[4:])["item_id"] == "lid"
