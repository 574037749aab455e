"""Documents that are whole JSON and wrong in one place: each reader gives a value, or the error that it documents.

A good document of each kind has one of its values replaced by any JSON value, taken out, or put in twice. That reaches
checks behind the decoder's, which bytes that are changed at random seldom do.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from canopy_fuzz.targets import kept, replies
from canopy_fuzz.targets.examples import ITEMS, evidence_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canopy_backend.errors import CanopyError, CriticError, ExportError, InvalidItem, InvalidRequest, RetrievalError
from canopy_backend.evidence import decode_evidence, encode_evidence
from canopy_backend.fragments import fragment, render
from canopy_backend.items import decode_item, encode_item
from canopy_backend.manifest import CARD_FILE, MANIFEST_FILE, AdapterCard, EncoderManifest
from canopy_backend.plan_card import PLAN_CARD, PlanCard
from canopy_backend.triton.options import COMPRESS_OPTIONS, parse_options
from canopy_backend.triton.sampling import parse_sampling
from canopy_client import trace
from canopy_client.llm.openai import completion_of
from canopy_client.view import page
from canopy_milvus.rows import decode_row

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(["", "text", "table", "video", "image", "../../etc/passwd", "\0", "-1", "kept", "1e400"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(string.ascii_lowercase), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all values of a document but itself."""
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    found = []
    for key, value in pairs:
        found += [(*path, key), *places(value, (*path, key))]
    return found


@st.composite
def damaged(draw: st.DrawFn, documents: list[bytes]) -> Any:
    """One of the documents, wrong in one or two places."""
    document = msgspec.json.decode(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 2))):
        paths = places(document)
        if not paths:
            break
        *way, last = draw(st.sampled_from(paths))
        inner = document
        for key in way:
            inner = inner[key]
        kind = draw(st.integers(0, 3))
        if kind == 0:
            del inner[last]
        elif kind == 1 and isinstance(inner, list):
            inner.insert(last, copy.deepcopy(inner[last]))
        else:
            inner[last] = draw(values)
    return document


def item(content: bytes, _: Path) -> None:
    found = decode_item(content)
    assert encode_item(decode_item(encode_item(found))) == encode_item(found)
    fragments = fragment(found)
    if len(fragments) < 1000:
        render(found, fragments, 0, len(fragments))


def evidence(content: bytes, _: Path) -> None:
    found = decode_evidence(content)
    assert decode_evidence(encode_evidence(found)) == found


def trace_file(content: bytes, folder: Path) -> None:
    (folder / "t.json").write_bytes(content)
    made = page(trace.read(folder / "t.json"))
    assert made.count("</script>") == made.count("<script")


def file_of(name: str, load: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    def read(content: bytes, folder: Path) -> None:
        (folder / name).write_bytes(content)
        load(folder)

    return read


def manifest(folder: Path) -> None:
    EncoderManifest.load(folder).verify(folder)


def plan(folder: Path) -> None:
    PlanCard.load(folder).require(folder / "model.plan", tensorrt="1", capability="9.0")


MANIFESTS = [seed[1:] for seed in kept._manifest_seeds()[:3]]
KINDS: dict[str, tuple[list[bytes], type[CanopyError], Callable[[bytes, Path], None]]] = {
    "item": ([encode_item(one) for one in ITEMS], InvalidItem, item),
    "evidence": ([encode_evidence(evidence_of(one)) for one in ITEMS], InvalidRequest, evidence),
    "trace": (kept._trace_seeds()[:2], InvalidRequest, trace_file),
    "manifest": (MANIFESTS[:1], ExportError, file_of(MANIFEST_FILE, manifest)),
    "card": (MANIFESTS[1:2], ExportError, file_of(CARD_FILE, AdapterCard.load)),
    "plan": (MANIFESTS[2:], ExportError, file_of(PLAN_CARD, plan)),
    "completion": (
        [b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4}}'],
        CriticError,
        lambda content, _: completion_of(content, "m") and None,
    ),
    "row": (
        replies._row_seeds()[:2],
        RetrievalError,
        lambda content, _: encode_item(decode_row(msgspec.json.decode(content))) and None,
    ),
    "parameters": (
        [b'{"canopy_trace":true,"priority":3}', b'{"canopy_keep_tables_whole":false,"canopy_trace":true}'],
        InvalidRequest,
        lambda content, _: parse_options(content.decode(), COMPRESS_OPTIONS) and None,
    ),
    "sampling": (
        [b'{"temperature":0,"stop":["a"],"guided_decoding":"{\\"choice\\":[\\"a\\"]}"}'],
        InvalidRequest,
        lambda content, _: parse_sampling(content.decode()) and None,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_document_that_is_wrong_in_one_place(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    documents, error, read = KINDS[kind]
    document = data.draw(damaged(documents))
    if kind == "row" and not isinstance(document, dict):
        return
    try:
        read(msgspec.json.encode(document), tmp_path)
    except error:
        return
