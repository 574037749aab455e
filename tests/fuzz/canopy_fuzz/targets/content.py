"""What items bring: their JSON, their texts, their trees, and the evidence that is made of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from canopy_backend.errors import EncoderFailure, EncoderMismatch, InvalidItem, InvalidRequest, LimitExceeded
from canopy_backend.evidence import assemble, decode_evidence, encode_evidence
from canopy_backend.fragments import fragment, render
from canopy_backend.fragments.text import text_spans
from canopy_backend.items import bring_trees, decode_item, decode_items, encode_item
from canopy_backend.limits import Limits
from canopy_backend.plan import ItemPlan, RequestPlan
from canopy_backend.refinement import refine, score_many
from canopy_backend.tree import content_hash, decode_tree, encode_tree, revision_of
from canopy_backend.triton.tensors import text
from canopy_fuzz.kinds import Target
from canopy_fuzz.targets.examples import DIMENSION, ITEMS, REVISION, blob_of, evidence_of

#: A table's rows and a clip's segments take no bytes of JSON, so their number is bounded before they are rendered.
_FRAGMENTS: Final = 4096
_BLOBS: Final = tuple(blob_of(item) for item in ITEMS)


def items(data: bytes) -> None:
    """One item's JSON: what is taken is written back the same, and can be cut into fragments."""
    bring_trees([data])
    item = decode_item(data)
    written = encode_item(item)
    assert encode_item(decode_item(written)) == written
    assert len(content_hash(item)) == 16
    fragments = fragment(item)
    assert len(fragments) >= 1
    if len(fragments) <= _FRAGMENTS:
        render(item, fragments, 0, len(fragments))


def requests(data: bytes) -> None:
    """Several items, one a line."""
    limits = Limits(max_items=8, max_item_bytes=400, max_picture_bytes=100)
    found = decode_items(data.split(b"\n"), limits)
    assert len({item.id for item in found}) == len(found) <= 8


def sentences(data: bytes) -> None:
    """A text as a query or an item brings it: spans cover it, in order, and none is empty but that of no text."""
    whole = text(data, "text")
    spans = text_spans(whole)
    assert spans[0, 0] == 0
    assert spans[-1, 1] == len(whole)
    assert (spans[1:, 0] == spans[:-1, 1]).all()
    assert (spans[:, 0] < spans[:, 1]).all() or not whole


def trees(data: bytes) -> None:
    """A tree blob, sealed again in one of two inputs, for one of the example items."""
    if not data:
        return
    item, blob = ITEMS[data[0] % len(ITEMS)], data[1:]
    if data[0] & 0x80 and len(blob) >= 60:
        blob = b"CNPYTREE" + blob[8:24] + bytes.fromhex(REVISION) + content_hash(item) + blob[48:]
        blob = blob[:56] + struct.pack("<I", zlib.crc32(blob[60:], zlib.crc32(blob[:56]))) + blob[60:]
    if blob.startswith(b"CNPYTREE") and len(blob) >= 60:
        revision_of(blob)
    tree = decode_tree(blob, item=item, revision=REVISION)
    assert encode_tree(tree) == blob
    query = np.ones(tree.vectors.shape[1], np.float32)
    scores = score_many([tree.vectors], query)
    with np.errstate(all="ignore"):
        kept = refine(tree.hierarchy, scores)
    assemble(item, tree.fragments, tree.hierarchy, kept, scores, tree.tokens)


def plans(data: bytes) -> None:
    """The tensor that one step hands to another, which a caller can send to that step by itself."""
    plan = RequestPlan.from_bytes(data)
    assert RequestPlan.from_bytes(plan.to_bytes()).to_bytes() == plan.to_bytes()
    if len(plan.items) <= len(ITEMS):
        embeddings = np.ones((2, 8, DIMENSION), np.float32)
        plan.trees(ITEMS[: len(plan.items)], embeddings, revision=REVISION)


def evidence(data: bytes) -> None:
    """Evidence as the server writes it."""
    found = decode_evidence(data)
    assert decode_evidence(encode_evidence(found)) == found or found != found


def _tree_seeds() -> list[bytes]:
    sealed = [bytes([place]) + blob for place, blob in enumerate(_BLOBS)]
    return sealed + [bytes([0x80 + place + (-0x80 % len(ITEMS))]) + blob for place, blob in enumerate(_BLOBS)]


def _plan_seeds() -> list[bytes]:
    plans_of: list[list[ItemPlan]] = [[], []]
    for item in ITEMS[:3]:
        from canopy_fuzz.targets.examples import tree_of

        tree = tree_of(item)
        leaves = np.flatnonzero(tree.hierarchy.is_leaf).astype(np.int32)
        parts = np.stack([leaves, np.zeros_like(leaves), np.arange(len(leaves)) % 8, np.ones_like(leaves)], axis=1)
        plans_of[1].append(ItemPlan(tree.fragments, tree.hierarchy, tree.tokens, parts.astype(np.int32)))
    none = np.zeros(0, np.int32)
    seeds = [RequestPlan(one, none, none).to_bytes() for one in plans_of]
    counts = np.array([1, 2, 1], np.int32)
    seeds.append(RequestPlan(plans_of[1], counts, np.ones(4, np.int32), "contextual").to_bytes())
    return seeds


def _lines() -> Sequence[bytes]:
    single = [encode_item(item) for item in ITEMS]
    return [*single, b"\n".join(single[:2]), b"\n".join([single[0], single[0]]), b'{"modality":"text"}', b"{]"]


_JSON: Final = (
    b'"modality":',
    b'"text"',
    b'"table"',
    b'"video"',
    b'"image"',
    b'"id":',
    b'"tree":',
    b'"rows":',
    b'"segments":',
    b'"frames":',
    b'"duration_s":',
    b"\\ud800",
    b"1e999",
    b"-0",
    b"NaN",
    b"[[[[",
    b"\xff",
    b"\xed\xa0\x80",
    b"null",
)

TARGETS: Final = (
    Target(
        name="items",
        decodes="an item, JSON",
        run=items,
        allowed=(InvalidItem,),
        seeds=_lines,
        words=_JSON,
        max_len=400,
    ),
    Target(
        name="requests",
        decodes="the items of a request",
        run=requests,
        allowed=(InvalidItem, LimitExceeded),
        seeds=_lines,
        words=_JSON,
    ),
    Target(
        name="sentences",
        decodes="a text, UTF-8",
        run=sentences,
        allowed=(InvalidRequest,),
        max_len=200,
        seeds=lambda: [
            b"Dr. Hale designed it. She left.",
            "这座桥建于1931年。「谁修的？」不知道。".encode(),
            b"a\r\n\r\n- b. c\n```\nd\n```\n",
            b"|a|b|\n|---|---|\n|c|d|\n",
            "Cafe\u0301 \U0001f389 opened. \u03a9\u200d ended.\u2028".encode(),
            b"\xff",
        ],
        words=(
            b"```",
            b"~~~",
            b"- ",
            b"1. ",
            b"# ",
            b"|",
            b"\xe3\x80\x8c",
            b"\xe3\x80\x8d",
            b"\xe2\x80\x8d",
            b"\x85",
            b"\xe2\x80\xa8",
            b"e.g. ",
            b"Fig. 3",
            b"\n\n",
            b"\r\n",
            b"\x00",
        ),
    ),
    Target(
        name="trees",
        decodes="a tree blob",
        run=trees,
        allowed=(InvalidItem, EncoderMismatch),
        seeds=_tree_seeds,
        words=(b"CNPYTREE", b"\xff\xff\xff\xff", b"\x00\x7c", b"\x00\xfc", b"\xff\xff\xff\x7f"),
        max_len=400,
    ),
    Target(
        name="plans",
        decodes="the PLAN tensor",
        run=plans,
        allowed=(InvalidRequest, EncoderMismatch, EncoderFailure),
        seeds=_plan_seeds,
        words=(b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"CPLN"),
    ),
    Target(
        name="evidence",
        decodes="evidence, JSON",
        run=evidence,
        allowed=(InvalidRequest,),
        seeds=lambda: [encode_evidence(evidence_of(item)) for item in ITEMS] + [b"{}", b"[[["],
        words=(*_JSON, b'"regions":', b'"trace":', b'"outcome":"kept"'),
        max_len=1024,
    ),
)
