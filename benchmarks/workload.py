"""What the load runs send: ten eight-sentence passages of the example corpus, cold or with their trees."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec

from canopy_backend.fragments import fragment
from canopy_backend.items import Item, TextItem, encode_item
from canopy_backend.sources import read_items
from canopy_client import CanopyClient

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "examples" / "corpus"
SENTENCES = 8
PASSAGES = 10


def passages(count: int = PASSAGES, sentences: int = SENTENCES) -> list[Item]:
    """The first ``count`` passages of the corpus that have ``sentences`` sentences, cut to exactly that many."""
    items: list[Item] = []
    for item in read_items([CORPUS / "passages.jsonl"]):
        if not isinstance(item, TextItem):
            continue
        spans = fragment(item).spans
        if len(spans) >= sentences and item.text.isascii():
            items.append(TextItem(id=item.id, title=item.title, text=item.text[: int(spans[sentences - 1, 1])]))
        if len(items) == count:
            return items
    raise SystemExit(f"the corpus has {len(items)} passages of {sentences} sentences, the bench needs {count}")


def questions(count: int = 24) -> list[str]:
    """Questions of the corpus, in file order."""
    lines = (CORPUS.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["question"]) for line in lines[:count]]


def with_trees(client: CanopyClient, items: list[Item]) -> list[Item]:
    """The same items, each carrying the tree that the server's ``index`` model makes."""
    return [
        msgspec.structs.replace(item, tree=indexed.tree)
        for item, indexed in zip(items, client.index(items), strict=True)
    ]


def write_compress_input(path: Path, query: str, items: list[Item]) -> None:
    """Write a perf_analyzer input file with one ``compress`` request."""
    content = [encode_item(item).decode() for item in items]
    data = [{"QUERY": {"content": [query], "shape": [1]}, "ITEMS": {"content": content, "shape": [len(content)]}}]
    path.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")


def write_query_input(path: Path, queries: list[str]) -> None:
    """Write a perf_analyzer input file with one ``embed_query`` request a query."""
    data = [{"QUERY": {"content": [query], "shape": [1]}} for query in queries]
    path.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")


def tree_bytes(items: list[Item]) -> int:
    """Bytes that the trees add to a request, as base64."""
    return sum(len(base64.b64encode(item.tree)) for item in items if item.tree)
