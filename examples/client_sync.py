"""Compress two passages: ``python examples/client_sync.py``, with a server at localhost:8001."""

from pathlib import Path

from canopy_backend.items import decode_item
from canopy_client import CanopyClient

passages = Path(__file__).parent / "corpus" / "passages.jsonl"
items = [decode_item(line) for line in passages.read_bytes().splitlines()[:2]]

with CanopyClient("localhost:8001") as canopy:
    for evidence in canopy.compress("When was judo invented?", items):
        print(f"{evidence.title}: {evidence.tokens_kept} of {evidence.tokens_in} tokens")
        print(evidence.text)
