"""A real vLLM with a tiny Qwen3-VL is shown what critic and reader are shown, and counts the tokens that we count.

Needs an environment with vLLM and a torchvision of the same build as its torch, named by ``CANOPY_VLLM_PYTHON``; the
critic's own has no torchvision, and a server takes longer to start than a test of every run may take.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from patience import PATIENCE_S
from tokenizers import Tokenizer

from canopy_backend.items import Item
from canopy_client import LoopOptions, Orchestrator
from canopy_client.deadline import Deadline
from canopy_client.llm import ChatTemplate, OpenAILanguageModel
from canopy_client.settings import Settings
from canopy_local.isolation import free_ports
from tests.integration.test_loop_pictures import ITEMS, Nobody, Shelf, chat_of

PYTHON = os.environ.get("CANOPY_VLLM_PYTHON", "")
PICTURES = 4
START_S = 300

pytestmark = pytest.mark.skipif(not PYTHON, reason="CANOPY_VLLM_PYTHON names no environment with vLLM and torchvision")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the smallest heads that vLLM's attention has on a CPU."""
    from canopy_export.qwen3vl import tiny

    text, vision = tiny.SIZES["tiny"]
    rope = {**text["rope_parameters"], "mrope_section": [16, 8, 8]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.SIZES, "tiny", ({**text, "head_dim": 64, "rope_parameters": rope}, vision))
        return tiny.tiny_qwen3vl(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32", "--max-model-len", "2048",
        "--max-num-seqs", "2", "--limit-mm-per-prompt", f'{{"image": {PICTURES}, "video": 0}}', "--skip-mm-profiling",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # What the tests import is not what the server imports.
    environment.pop("PYTHONPATH", None)
    with (
        (model / "vllm.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as server,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}", server, model / "vllm.log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            if httpx.get(f"{address}/health", timeout=10).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    pytest.fail(f"vLLM did not start:\n{log.read_text()[-2000:]}")


@pytest.mark.parametrize("items", [ITEMS[1:2], ITEMS[:2], [ITEMS[0], ITEMS[4]], ITEMS[3:4], ITEMS])
async def test_the_server_counts_the_tokens_that_we_count(items: list[Item], model: Path, url: str) -> None:
    settings = Settings.load({"llm_sees": True, "model_folder": model, "llm_pictures": PICTURES}, {})
    sight = settings.sight()
    assert sight is not None
    chat = await chat_of(sight, items)
    pictures = [part for part in chat[1].parts() if not isinstance(part, str)]
    prompt = ChatTemplate.from_folder(model).render(chat)
    tokens = len(Tokenizer.from_file(str(model / "tokenizer.json")).encode(prompt, add_special_tokens=False).ids)
    llm = OpenAILanguageModel(url, model="tiny")
    completion = await llm.generate(chat, max_tokens=4, deadline=Deadline.after(PATIENCE_S))
    await llm.close()
    # Each picture is three tokens of the prompt as it is written: its marks and one placeholder.
    assert completion.prompt_tokens == tokens + sum(one.tokens - 3 for one in pictures)


async def test_a_question_comes_to_an_answer(model: Path, url: str) -> None:
    settings = Settings.load({"llm_sees": True, "model_folder": model, "llm_pictures": PICTURES}, {})
    llm = OpenAILanguageModel(url, model="tiny")
    loop = Orchestrator(Shelf(), Nobody(), llm, sight=settings.sight())
    options = LoopOptions(compress=False, max_rounds=1, reader_tokens=4)
    answer = await loop.answer("What is it?", options=options, deadline_s=PATIENCE_S)
    await llm.close()
    assert (answer.stop, answer.error, answer.llm_calls) == ("max_rounds", "", {"reader": 1})
    assert sum(one.shown for cited in answer.evidence for one in cited.pictures) == PICTURES
