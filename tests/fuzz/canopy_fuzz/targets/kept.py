"""Files that are kept and read again: traces, manifests, cards of adapters and plans."""

from __future__ import annotations

import itertools
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from canopy_backend.errors import ExportError, InvalidRequest
from canopy_backend.manifest import CARD_FILE, MANIFEST_FILE, AdapterCard, EncoderManifest
from canopy_backend.plan_card import PLAN_CARD, PlanCard
from canopy_client import trace
from canopy_client.answer import Answer, Cited, HitRecord, Original, Round
from canopy_client.verdict import Verdict
from canopy_client.view import page, pictures
from canopy_client.view.check import check
from canopy_client.view.page import data as page_data
from canopy_fuzz.kinds import Target
from canopy_fuzz.targets.examples import ITEMS, evidence_of, tree_of
from canopy_fuzz.targets.memory import InMemory

#: One good trace in so many is made a page of: the page's own files are read for each.
_PAGE: Final = 200
_good = itertools.count()


@cache
def _folder() -> Path:
    return Path(_made().name)


@cache
def _made() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="canopy-fuzz-")


def traces(data: bytes) -> None:
    """A trace file, as ``canopy view`` takes it: nothing in it can end the element that it stands in."""
    content = trace.read(InMemory.file("trace.json", data))
    check(content)
    assert "<" not in page_data(content)
    for address in pictures(content, _folder()).values():
        assert address.startswith("data:image/")
    if next(_good) % _PAGE == 0:
        assert page(content).startswith("<!")


def manifests(data: bytes) -> None:
    """A manifest of an encoder, a card of an adapter and one of a plan: one of three files in a folder."""
    kind = data[0] % 3 if data else 0
    name = (MANIFEST_FILE, CARD_FILE, PLAN_CARD)[kind]
    (_folder() / name).write_bytes(data[1:])
    if kind == 0:
        manifest = EncoderManifest.load(_folder())
        assert len(manifest.revision) == 16
        manifest.verify(_folder())
    elif kind == 1:
        assert AdapterCard.load(_folder()).branching >= 2
    else:
        card = PlanCard.load(_folder())
        card.rows()
        card.require(_folder() / "model.plan", tensorrt="1", capability="9.0")


def _trace_seeds() -> list[bytes]:
    cited = []
    for place, item in enumerate(ITEMS[:2]):
        spans = tree_of(item).fragments.spans
        edges = [int(spans[0, 0]), *spans[:, 1].tolist()]
        original = Original(item=item, edges=edges)
        one = Cited(number=place + 1, round=1, regions_shown=1, evidence=evidence_of(item), original=original)
        cited.append(one)
    hit = HitRecord(item_id="t", modality="text", title="", score=0.5, new=True)
    verdict = Verdict(sufficient=True, answer="1931")
    common: dict[str, Any] = {"llm_calls": {"critic": 1}, "tables_whole": None, "seconds": 1.0, "reader_seconds": 0.5}
    counts = {"tokens_before": 9, "tokens_after": 5, "tokens_read": 5}
    answers = [
        Answer(
            question="q", text="a", stop="sufficient", evidence=cited[:count],
            rounds=[Round(number=1, query="q", hits=[hit], verdict=verdict)], **common, **counts,
        )
        for count in (0, 2)
    ]  # fmt: skip
    files = [trace.TraceFile(created="2026", model="m", settings={"k": "1"}, answers=[one]) for one in answers]
    return [msgspec.json.encode(file) for file in files] + [b'{"format":9}', b"{}", b"[[["]


def _manifest_seeds() -> list[bytes]:
    common: dict[str, Any] = {"template": "t", "window": 256, "dimension": 4, "pooling": "mean"}
    manifest = EncoderManifest(model="m", model_revision="r", precision="fp32", files={"a": "0" * 64}, **common)
    card = AdapterCard(base="b", base_revision="r", node_encoding="separate", **common)
    shapes = {"p": {"input_ids": ((1, 64), (8, 64), (64, 64))}}
    plan = PlanCard(onnx={"model.onnx": "0" * 64}, plan="0" * 64, tensorrt="1", capability="9.0", profiles=shapes)
    written = [bytes([kind]) + msgspec.json.encode(one) for kind, one in enumerate((manifest, card, plan))]
    return [*written, b"\0" + b"[" * 200, b"\1{}", b"\2\xff"]


TARGETS: Final = (
    Target(
        name="traces",
        decodes="a trace file",
        run=traces,
        allowed=(InvalidRequest,),
        seeds=_trace_seeds,
        words=(
            b'"format":3',
            b'"answers":',
            b'"evidence":',
            b'"original":',
            b'"edges":[0,1]',
            b'"uri":"../../etc/passwd"',
            b"</script>",
            b'"node":0',
            b'"parent":-1',
            b'"outcome":"kept"',
            b"1e999",
            b"-1",
        ),
        max_len=3000,
    ),
    Target(
        name="manifests",
        decodes="manifests, cards, plan.json",
        run=manifests,
        allowed=(ExportError,),
        seeds=_manifest_seeds,
        words=(b'"files":', b'"../x":', b'"dimension":', b'"profiles":', b"[[[[", b"\\u0000", b"65536", b"0" * 64),
        max_len=700,
    ),
)
