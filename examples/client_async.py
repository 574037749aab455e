"""Ask two things at once: ``python examples/client_async.py``, with a server at localhost:8001."""

import asyncio
from pathlib import Path

from canopy_backend.items import decode_item
from canopy_client import AsyncCanopyClient

QUERIES = ("When was judo invented?", "Who taught karate in Tokyo?")


async def main() -> None:
    passages = Path(__file__).parent / "corpus" / "passages.jsonl"
    items = [decode_item(line) for line in passages.read_bytes().splitlines()[:2]]
    async with AsyncCanopyClient("localhost:8001") as canopy:
        answers = await asyncio.gather(*(canopy.compress(query, items) for query in QUERIES))
    for query, evidences in zip(QUERIES, answers, strict=True):
        print(query)
        for evidence in evidences:
            print(f"  {evidence.title}: {evidence.text}")


if __name__ == "__main__":
    asyncio.run(main())
