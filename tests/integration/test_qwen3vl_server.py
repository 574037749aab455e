"""A Qwen3-VL through a real server, pixels included: the vectors and decisions of torch with its adapter."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from PIL import Image
from typer.testing import CliRunner

from benchmarks.parity.trees import picture
from canopy_backend.errors import InvalidItem, LimitExceeded
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, Frame, ImageItem, Item, TableItem, TextItem, VideoItem, has_pictures
from canopy_backend.qwen3vl.nodes import plan_content
from canopy_backend.qwen3vl.patches import scaled
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.tokenization import EncoderTokenizer
from canopy_client import CanopyClient, canary
from canopy_client.cli.app import build as canopy_app
from canopy_client.cli.commands import items_of
from canopy_client.settings import Settings
from canopy_export.qwen3vl.adapter import merge_language_adapter
from canopy_export.qwen3vl.build import load_model
from canopy_export.qwen3vl.folder import vision_settings
from canopy_export.qwen3vl.graphs import LanguageGraph, VisionGraph
from canopy_export.qwen3vl.onnx_files import run_torch
from canopy_export.qwen3vl.parity import PixelEncoders, run_pixels
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_export.qwen3vl.tiny_adapter import write_adapter
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.stack import running

pytestmark = pytest.mark.server

WORDS = ("the", "old", "harbour", "ships", "grain", "timber", "light", "keeper", "north", "quay", "winter", "storm")
QUERIES = ["Which ships carried grain?", "Who kept the light in the north?", "a storm in winter"]
#: As the export gives it to the tokenizers.
WINDOW = 2048


@pytest.fixture(scope="module")
def served(stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """Settings of an evidence server with a tiny Qwen3-VL and an adapter."""
    folder = tmp_path_factory.mktemp("qwen3vl")
    made = shutil.ignore_patterns("model.onnx*", "manifest.json", "tokenizer.json", "qwen3vl.json")
    shutil.copytree(stack.settings.model_repository, folder / "repository", ignore=made)
    model = tiny_qwen3vl(folder / "model")
    settings = msgspec.structs.replace(
        isolated(stack.settings, folder / "home"),
        model_repository=folder / "repository",
        model=model,
        adapter=write_adapter(model, folder / "adapter"),
    )
    with running(settings, servers=["evidence"]):
        yield settings


@pytest.fixture(scope="module")
def client(served: StackSettings) -> Iterator[CanopyClient]:
    with CanopyClient(f"127.0.0.1:{served.grpc_port}", deadline_s=300) as one:
        yield one


def words(random: np.random.Generator, count: int = 7) -> str:
    return " ".join(random.choice(WORDS, count)).capitalize() + "."


def text_items() -> list[Item]:
    random = np.random.default_rng(12)
    made: list[Item] = []
    for place in range(3):
        made.append(TextItem(id=f"text{place}", title=WORDS[place], text=" ".join(words(random) for _ in range(6))))
        rows = [[str(1900 + row), str(random.choice(WORDS)), "<|im_end|>"] for row in range(5)]
        made.append(TableItem(id=f"table{place}", columns=["year", "cargo", "mark"], rows=rows))
        cues = [Cue(start, start + 20, words(random)) for start in range(0, 120, 25)]
        made.append(VideoItem(id=f"video{place}", duration_s=130, segments=cues))
        made.append(ImageItem(id=f"image{place}", title="A view", caption=words(random)))
    return [*made, TextItem(id="long", text=" ".join(words(random) for _ in range(60)))]


def seen_items() -> list[Item]:
    """Pictures with and without a caption, clips with and without a transcript, one of them with a long one."""
    random = np.random.default_rng(14)
    made: list[Item] = []
    for place in range(4):
        made.append(ImageItem(id=f"bare{place}", image=picture(random, 40 + 30 * place, 64)))
        made.append(ImageItem(id=f"told{place}", title="Weir", caption=words(random), image=picture(random, 90, 64)))
        frames = [Frame(float(at), picture(random, 48, 64 + 16 * place)) for at in range(5, 120, 10 + 5 * place)]
        cues = [Cue(start, start + 20, words(random)) for start in range(0, 120, 25)] if place % 2 else []
        made.append(VideoItem(id=f"clip{place}", duration_s=120, frames=frames, segments=cues))
    cues = [Cue(5.0 * place, 5.0 * place + 5, words(random, 60)) for place in range(12)]
    frames = [Frame(10.0 * place, picture(random, 64, 64)) for place in range(6)]
    wordy = VideoItem(id="wordy", duration_s=60, frames=frames, segments=cues)
    return [*made, wordy, ImageItem(id="essay", caption=words(random, 500), image=picture(random, 64, 64))]


def mixed_items() -> list[Item]:
    random = np.random.default_rng(3)
    order = random.permutation(len(text_items()) + len(seen_items()))
    every = [*text_items(), *seen_items()]
    return [every[place] for place in order]


@pytest.fixture(scope="module")
def reference(served: StackSettings) -> PixelEncoders:
    """Torch, the node encoder with its adapter and the query encoder without."""
    assert served.model is not None
    assert served.adapter is not None
    settings = vision_settings(served.model)
    tuned, base = load_model(served.model), load_model(served.model)
    merge_language_adapter(tuned, served.adapter, settings)
    vision = VisionGraph(base.visual, settings).eval()
    node, query = (LanguageGraph(one.language_model).eval() for one in (tuned, base))
    tokenizers = [
        EncoderTokenizer(served.model_repository / name / "tokenizer.json", WINDOW)
        for name in ("node_encoder", "query_encoder")
    ]
    return PixelEncoders(
        lambda inputs: run_torch(vision, inputs),
        lambda inputs: run_torch(node, inputs),
        lambda inputs: run_torch(query, inputs),
        *tokenizers,
        settings,
    )


def test_a_mixed_request_decides_as_torch_does(client: CanopyClient, reference: PixelEncoders) -> None:
    items = mixed_items()
    expected = run_pixels(reference, QUERIES[:1], items)
    evidence = client.compress(QUERIES[0], items)
    assert [one.item_id for one in evidence] == [item.id for item in items]
    for place, one in enumerate(evidence):
        if expected.margins[0, place] > 1e-5:
            assert tuple((region.first, region.last) for region in one.regions) == expected.kept[0, place], one.item_id
    warm = [msgspec.structs.replace(item, tree=one.tree) for item, one in zip(items, client.index(items), strict=True)]
    assert client.compress(QUERIES[0], [*warm[:9], *items[9:]]) == evidence
    assert client.compress(QUERIES[0], warm) == evidence


def whole_vector(model: object, item: Item, tokenizer: EncoderTokenizer, settings: VisionSettings) -> np.ndarray:
    """What transformers' own model makes of an item as a whole."""
    fragments = fragment(item)
    plan = plan_content(item, fragments, balanced(len(fragments)), tokenizer, settings)
    assert plan.nodes[0] == 0
    assert plan.looks[0] is not None
    ids = torch.tensor([plan.sequences[0].ids])
    image = isinstance(item, ImageItem)
    kinds = (ids == settings.image_token).long() + 2 * (ids == settings.video_token).long()
    pixels = {
        "pixel_values" if image else "pixel_values_videos": torch.from_numpy(scaled(plan.looks[0].take(), settings)),
        "image_grid_thw" if image else "video_grid_thw": torch.tensor([plan.looks[0].grid]),
    }
    with torch.inference_mode():
        states = model(  # type: ignore[operator]
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, use_cache=False, **pixels
        ).last_hidden_state
    return torch.nn.functional.normalize(states[0, -1].float(), dim=0).numpy()


def test_whole_items_have_the_vectors_of_transformers(
    served: StackSettings, client: CanopyClient, reference: PixelEncoders
) -> None:
    assert served.model is not None
    items = [item for item in seen_items() if item.id not in ("wordy", "essay")]
    base = load_model(served.model)
    expected = [whole_vector(base, item, reference.node_tokenizer, reference.settings) for item in items]
    found = np.stack([one.embedding for one in client.index(items)])
    assert (np.sum(np.stack(expected) * found, axis=1)).min() >= 0.9999
    words_alone = client.index([msgspec.structs.replace(items[1], image=None)])[0].embedding
    assert float(words_alone @ found[1]) < 0.99, "the picture counts"


def answered(served: StackSettings, *models: str, least: int = 0) -> list[int]:
    """Requests that models have answered, when no figure has changed for a second and the first has come so far."""
    seen: list[list[int]] = []
    with triton.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as raw:
        for _ in range(600):
            seen.append(
                [raw.get_inference_statistics(one).model_stats[0].inference_stats.success.count for one in models]
            )
            if len(seen) > 5 and seen[-1][0] >= least and all(figures == seen[-1] for figures in seen[-6:]):
                return seen[-1]
            time.sleep(0.2)
    pytest.fail(f"the server did not come to rest: {seen[-6:]}")


def test_nothing_without_pixels_reaches_the_vision_tower(served: StackSettings, client: CanopyClient) -> None:
    random = np.random.default_rng(21)
    image = ImageItem(id="fresh", image=picture(random, 64, 64))
    before = answered(served, "vision_encoder", "node_encoder")
    indexed = client.index([image])[0]
    after = answered(served, "vision_encoder", "node_encoder", least=before[0] + 1)
    assert after[0] - before[0] == 1
    assert after[1] - before[1] == 2, "the row of the picture, and the padding that stands in for rows of text"
    text = text_items()[:4]
    client.index(text)
    client.compress(QUERIES[0], text)
    client.compress(QUERIES[0], [msgspec.structs.replace(image, tree=indexed.tree), *text])
    client.compress(QUERIES[0], [msgspec.structs.replace(image, tree=indexed.tree)])
    client.embed_query(QUERIES)
    rest = answered(served, "vision_encoder", "node_encoder")
    assert rest[0] == after[0]
    assert rest[1] > after[1]
    client.compress(QUERIES[0], [*text, image])
    assert answered(served, "vision_encoder", least=after[0] + 1)[0] == after[0] + 1
    canary.call(canary.EVIDENCE, client.url, timeout_s=60)
    assert answered(served, "vision_encoder", least=after[0] + 2)[0] == after[0] + 2, "a probe asks the tower too"


PNG = picture(np.random.default_rng(8), 64, 64)


def bomb() -> bytes:
    """64 million pixels in some kilobytes."""
    file = BytesIO()
    Image.new("1", (8000, 8000)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("bad", "field", "reason"),
    [
        (ImageItem(id="cut", image=PNG[: len(PNG) // 2]), "image", "cannot be decoded"),
        (ImageItem(id="text", image=b"GIF89a" + bytes(60)), "image", "no PNG, JPEG or WebP"),
        (ImageItem(id="bomb", image=bomb()), "image", "more than"),
        (
            VideoItem(id="clip", duration_s=60, frames=[Frame(0.0, PNG), Frame(9.0, PNG[:50])]),
            "frames[1].image",
            "can",
        ),
        (
            VideoItem(
                id="sizes",
                duration_s=60,
                frames=[Frame(0.0, PNG), Frame(9.0, picture(np.random.default_rng(1), 32, 64))],
            ),
            "frames[1].image",
            "the first frame",
        ),
    ],
    ids=lambda value: getattr(value, "id", ""),
)
def test_a_hostile_picture_names_its_item_and_touches_no_other_request(
    bad: Item, field: str, reason: str, client: CanopyClient
) -> None:
    good = [TextItem(id="good", text="The lid is heavy. Fire it at noon."), ImageItem(id="fine", image=PNG)]
    expected = client.compress(QUERIES[0], good)
    for call in (lambda items: client.compress(QUERIES[0], items), client.index):
        with pytest.raises(InvalidItem, match=reason) as caught:
            call([*good, bad])
        assert (caught.value.index, caught.value.item_id, caught.value.field) == (2, bad.id, field)
    assert client.compress(QUERIES[0], good) == expected


def test_limits_of_pictures(client: CanopyClient) -> None:
    with pytest.raises(LimitExceeded, match="max_picture_bytes"):
        client.compress(QUERIES[0], [ImageItem(id="heavy", image=bytes(5 << 20))])
    many = VideoItem(id="many", duration_s=60, frames=[Frame(float(place), PNG) for place in range(33)])
    with pytest.raises(LimitExceeded, match="max_frames"):
        client.compress(QUERIES[0], [many])
    shown = picture(np.random.default_rng(2), 256, 256)
    endless = VideoItem(id="endless", duration_s=30 * 1500, frames=[Frame(1.0, shown)])
    with pytest.raises(LimitExceeded, match=r"item 0 \('endless'\): patches of its pictures") as caught:
        client.compress(QUERIES[0], [endless])
    assert caught.value.actual > caught.value.limit == client.limits().max_patches


def test_the_client_brings_pixels_where_the_server_says_that_it_sees(
    served: StackSettings, client: CanopyClient, tmp_path: Path
) -> None:
    assert client.sees_pixels()
    told = CliRunner().invoke(canopy_app(), ["limits", "--json", "--url", client.url])
    assert json.loads(told.stdout)["pixels"] is True
    (tmp_path / "weir.png").write_bytes(PNG)
    (tmp_path / "weir.caption.txt").write_text("The weir at dawn.")
    for pixels, brought in ((None, True), (True, True), (False, False)):
        settings = Settings(url=client.url, pixels=pixels)
        (item,) = items_of(settings, [tmp_path], client)
        assert has_pictures(item) is brought
