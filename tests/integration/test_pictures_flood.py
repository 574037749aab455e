"""Many more pictures at once than a server can look at: a bounded wait, and a way through for all that brings none."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import msgspec
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from benchmarks.parity.trees import picture
from canopy_backend.errors import CanopyError, DeadlineExceeded, Overloaded
from canopy_backend.items import Frame, ImageItem, Item, TextItem, VideoItem, encode_item
from canopy_client import CanopyClient, RetryPolicy
from canopy_client.codec import compress_request
from canopy_client.status import call_error
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_local import stack as local
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings

pytestmark = pytest.mark.server

QUERY = "Which ships carried grain?"
#: Milliseconds that pictures may wait here: a canary passes, and the flood of them takes far longer on any machine.
WAIT_MS = 2000
CLIENTS = 64
WORDS = TextItem(id="words", text="The old harbour ships grain. The keeper lights the north quay.")


@pytest.fixture(scope="module")
def served(stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """Settings of an evidence server that sees, with a short wait for whoever asks `compress` to look."""
    folder = tmp_path_factory.mktemp("flood")
    made = shutil.ignore_patterns("model.onnx*", "manifest.json", "tokenizer.json", "qwen3vl.json")
    shutil.copytree(stack.settings.model_repository, folder / "repository", ignore=made)
    settings = msgspec.structs.replace(
        isolated(stack.settings, folder / "home"),
        model_repository=folder / "repository",
        model=tiny_qwen3vl(folder / "model"),
    )
    local.export(settings, local.silent)
    config = settings.model_repository / "hierarchy" / "configs" / "embedded.pbtxt"
    text = config.read_text(encoding="utf-8")
    short, changed = re.subn(r'("max_wait_ms"\s+value \{\s+string_value: )"\d+"', rf'\1"{WAIT_MS}"', text)
    assert changed == 1
    config.write_text(short, encoding="utf-8")
    with local.running(settings, servers=["evidence"]):
        assert config.read_text(encoding="utf-8") == short, "the export leaves it alone"
        yield settings


@pytest.fixture(scope="module")
def url(served: StackSettings) -> str:
    return f"127.0.0.1:{served.grpc_port}"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[CanopyClient]:
    with CanopyClient(url, deadline_s=600, retry=RetryPolicy(attempts=1)) as one:
        yield one


def clip(name: str) -> Item:
    """A clip that takes some time to look at: as many frames as an item may have, seen anew on each level."""
    random = np.random.default_rng(5)
    frames = [Frame(10.0 * place, picture(random, 192, 192)) for place in range(32)]
    return VideoItem(id=name, duration_s=320, frames=frames)


def patiently(client: CanopyClient, item: Item) -> object:
    """The evidence of an item, asked for until its turn comes in time."""
    for _ in range(200):
        try:
            return client.compress(QUERY, [item])[0]
        except Overloaded:
            time.sleep(0.1)
    pytest.fail("a server with nothing else to do never had time to look")


def send(url: str, item: Item) -> str:
    """What becomes of one request of a client of its own, which does not send it again."""
    request = compress_request(QUERY, [encode_item(item)])
    with grpc.insecure_channel(url) as channel:
        try:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=600)
        except grpc.RpcError as error:
            failed = call_error(error, url)
            assert isinstance(failed, Overloaded), failed
            return str(failed)
    return ""


def test_a_flood_of_pictures_is_refused_in_time_and_text_gets_through(url: str, client: CanopyClient) -> None:
    moving = clip("moving")
    expected = patiently(client, moving)
    words = client.compress(QUERY, [WORDS])
    with ThreadPoolExecutor(CLIENTS) as clients:
        flood = [clients.submit(send, url, moving) for _ in range(CLIENTS)]
        assert [client.compress(QUERY, [WORDS]) for _ in range(5)] == [words] * 5
        indexed = client.index([WORDS])
        answers = [one.result() for one in flood]
    refused = [answer for answer in answers if answer]
    assert refused, "more than the server can look at in the time that they may wait"
    assert all(re.search(rf"hierarchy: waited [\d.]+ s for its turn; the limit is {WAIT_MS / 1000:g} s", answer)
               for answer in refused)  # fmt: skip
    assert client.compress(QUERY, [msgspec.structs.replace(WORDS, tree=indexed[0].tree)]) == words
    assert patiently(client, moving) == expected


def sent(url: str, model: str, items: list[Item], waited_s: float, timeout_us: int | None = None) -> None:
    """A first step is asked directly, with an arrival in the past."""
    tensors = [np.array([encode_item(item) for item in items], np.object_)]
    names = ["ITEMS"]
    if model == "hierarchy":
        names.append("QUERY")
        tensors.append(np.array([QUERY.encode()], np.object_))
    inputs = []
    for name, tensor in zip(names, tensors, strict=True):
        inputs.append(triton.InferInput(name, list(tensor.shape), "BYTES"))
        inputs[-1].set_data_from_numpy(tensor)
    since = triton.InferInput("ARRIVAL", [1], "INT64")
    since.set_data_from_numpy(np.array([time.monotonic_ns() - int(waited_s * 1e9)]))
    with triton.InferenceServerClient(url) as raw:
        raw.infer(model, [*inputs, since], timeout=timeout_us)


@pytest.mark.parametrize(("model", "limit"), [("hierarchy", "2 s"), ("planner", "120 s")])
def test_only_what_has_to_be_looked_at_has_to_be_in_time(
    model: str, limit: str, url: str, client: CanopyClient
) -> None:
    image = ImageItem(id="image", image=picture(np.random.default_rng(6), 64, 64))
    with pytest.raises(InferenceServerException, match=rf"waited 3600\.\d+ s for its turn; the limit is {limit} "):
        sent(url, model, [WORDS, image], 3600)
    sent(url, model, [WORDS], 3600)
    if model == "hierarchy":  # whole items are looked at again for `index`
        (tree,) = client.index([image])
        sent(url, model, [WORDS, msgspec.structs.replace(image, tree=tree.tree)], 3600)


@pytest.mark.parametrize("model", ["hierarchy", "planner"])
def test_nothing_is_begun_for_a_caller_whose_time_is_over(model: str, url: str) -> None:
    with pytest.raises(InferenceServerException, match=r"the time of the request, 60 s, was over before its turn came"):
        sent(url, model, [WORDS], 3600, timeout_us=60_000_000)


def test_a_callers_deadline_holds_in_the_flood(url: str, client: CanopyClient) -> None:
    """Clips of callers who leave again; nobody is worked for who has left, so the next one is not late."""
    leaving = clip("leaving")
    with (
        ThreadPoolExecutor(CLIENTS) as clients,
        CanopyClient(url, retry=RetryPolicy(attempts=1)) as hasty,
    ):
        client.limits()
        flood = [clients.submit(hasty.index, [leaving], deadline_s=0.5) for _ in range(CLIENTS)]
        ends = [one.exception() for one in flood]
    assert {type(end) for end in ends if end is not None} <= {DeadlineExceeded}, ends
    assert any(ends)
    assert client.index([WORDS])[0].tree


def test_a_server_without_its_tower_says_how_to_start_it(url: str, client: CanopyClient) -> None:
    image = ImageItem(id="image", image=picture(np.random.default_rng(7), 64, 64))
    with triton.InferenceServerClient(url) as raw:
        raw.unload_model("vision_encoder")
        try:
            with pytest.raises(CanopyError, match="start the server with --load-model=vision_encoder"):
                client.index([image])
            assert client.index([WORDS])[0].tree
        finally:
            raw.load_model("vision_encoder")
    assert client.index([image])[0].tree
