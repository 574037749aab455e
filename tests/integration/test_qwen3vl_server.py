"""The text side of a Qwen3-VL through a real server: the vectors and decisions of torch with its adapter."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from canopy_backend.items import Cue, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_client import CanopyClient
from canopy_export.parity import TorchEncoders, compare, run_encoders, run_endpoint
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.stack import running

pytestmark = pytest.mark.server

WORDS = ("the", "old", "harbour", "ships", "grain", "timber", "light", "keeper", "north", "quay", "winter", "storm")
QUERIES = ["Which ships carried grain?", "Who kept the light in the north?", "a storm in winter"]


@pytest.fixture(scope="module")
def served(stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """Settings of an evidence server with a tiny Qwen3-VL."""
    folder = tmp_path_factory.mktemp("qwen3vl")
    made = shutil.ignore_patterns("model.onnx*", "manifest.json", "tokenizer.json")
    shutil.copytree(stack.settings.model_repository, folder / "repository", ignore=made)
    settings = msgspec.structs.replace(
        isolated(stack.settings, folder / "home"),
        model_repository=folder / "repository",
        model=tiny_qwen3vl(folder / "model"),
    )
    with running(settings, servers=["evidence"]):
        yield settings


def items() -> list[Item]:
    random = np.random.default_rng(12)

    def sentence() -> str:
        return " ".join(random.choice(WORDS, 7)).capitalize() + "."

    made: list[Item] = []
    for place in range(5):
        made.append(TextItem(id=f"text{place}", title=WORDS[place], text=" ".join(sentence() for _ in range(6))))
        rows = [[str(1900 + row), str(random.choice(WORDS)), "<|im_end|>"] for row in range(5)]
        made.append(TableItem(id=f"table{place}", columns=["year", "cargo", "mark"], rows=rows))
        cues = [Cue(start, start + 20, sentence()) for start in range(0, 120, 25)]
        made.append(VideoItem(id=f"video{place}", duration_s=130, segments=cues))
        made.append(ImageItem(id=f"image{place}", title="A view", caption=sentence()))
    long = " ".join(sentence() for _ in range(150))
    return [*made, TextItem(id="long", text=long)]


def test_the_server_decides_as_torch_does(served: StackSettings) -> None:
    assert served.model is not None
    expected = run_encoders(TorchEncoders(served.model), served.model_repository, QUERIES, items())
    with CanopyClient(f"127.0.0.1:{served.grpc_port}", deadline_s=600) as client:
        parity = compare(expected, run_endpoint(client, served.model_repository, QUERIES, items()))
        cold = [one.regions for one in client.compress(QUERIES[0], items())]
    parity.require("server")
    assert parity.equal >= 0.995 * parity.decisions
    kept = [tuple((region.first, region.last) for region in regions) for regions in cold]
    assert kept == [expected.kept[0, place] for place in range(len(items()))]
