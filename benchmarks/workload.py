"""What every contender gets: ten short passages, and questions with ten items each out of one pool.

``python -m benchmarks.workload OUT`` writes perf_analyzer's input files for items without trees, so that a server that
runs somewhere else can be loaded with the same requests.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from canopy_backend.fragments import fragment
from canopy_backend.items import Item, TableItem, TextItem, encode_item
from canopy_backend.sources import read_items
from canopy_client import CanopyClient
from canopy_training.data import Gold, Question, read_questions

ROOT: Final = Path(__file__).resolve().parent.parent
CORPUS: Final = ROOT / "examples" / "corpus"
SENTENCES: Final = 8
#: Items of one request.
PASSAGES: Final = 10
#: Items that a question brings along at most; the rest of its ten are other questions'.
_OWN: Final = 5
#: Longer items are left out, so that ten of them fit into one cold request; in characters of their JSON.
_LONGEST: Final = 6000
#: The peers' sentence splitters read English, and transcripts are longer than the bound.
_LEFT_OUT: Final = ("jsquad", "qmsum")


@dataclass(frozen=True)
class Workload:
    """The same for all contenders.

    Attributes:
        questions: Questions, each with exactly :data:`PASSAGES` items.
        items: All items, each once.
        source: Where they come from, in words.
    """

    questions: list[Question]
    items: list[Item]
    source: str

    def shown(self, question: Question) -> list[Item]:
        """The items of a request for ``question``."""
        return list(question.items)


def default_data() -> Path | None:
    """The folder ``data`` of the checkout, where somebody put question sets there."""
    folder = ROOT / "data"
    return folder if any(folder.glob("*.questions.jsonl.gz")) else None


def build(data: Path | None, *, questions: int, items: int) -> Workload:
    """Questions and a pool of items, the same in every run.

    Args:
        data: Folder of question sets; without it the example corpus has to do, which is smaller.
        questions: Questions that are wanted.
        items: Items that are wanted in the pool.
    """
    chosen: dict[str, list[Item]] = {}
    pool: dict[str, Item] = {}
    taken: list[Question] = []
    for question in _in_turn(data):
        golds = {gold.item_id for gold in question.gold}
        own = sorted(question.items, key=lambda item: item.id not in golds)[:_OWN]
        short = all(len(encode_item(item)) <= _LONGEST for item in own)
        if not short or not golds <= {item.id for item in own} or len({**pool, **{i.id: i for i in own}}) > items:
            continue
        pool |= {item.id: item for item in own}
        chosen[f"{question.dataset}/{question.id}"] = own
        taken.append(question)
        if len(taken) == questions:
            break
    for item in itertools.chain.from_iterable(question.items for question in _in_turn(data)):
        if len(pool) >= items:
            break
        if len(encode_item(item)) <= _LONGEST:
            pool.setdefault(item.id, item)
    everything = list(pool.values())
    filled = [
        msgspec.structs.replace(
            question, items=tuple(_fill(chosen[f"{question.dataset}/{question.id}"], everything, place))
        )
        for place, question in enumerate(taken)
    ]
    sets = sorted({question.dataset for question in filled})
    return Workload(filled, everything, ", ".join(sets))


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


def sized(count: int, sentences: int) -> list[Item]:
    """``count`` different texts of exactly ``sentences`` sentences of the corpus, in an order of their own each."""
    found = []
    for item in read_items([CORPUS / "passages.jsonl"]):
        if isinstance(item, TextItem) and item.text.isascii():
            found += [item.text[start:end].strip() for start, end in fragment(item).spans.tolist()]
    # Only sentences that the splitter leaves as they are before and behind another one.
    whole = [text for text in found if _stands_alone(text)]
    made: list[Item] = []
    for number in range(count):
        order = np.random.default_rng(number).permutation(len(whole))
        lines = [whole[order[place % len(order)]] for place in range(sentences)]
        made.append(TextItem(id=f"sized-{sentences}-{number}", title=f"Text {number}", text="\n".join(lines)))
    return made


def _stands_alone(sentence: str) -> bool:
    """Whether a sentence stays one fragment between others."""
    between = TextItem(id="between", title="", text=f"It was so.\n{sentence}\nIt was so.")
    return len(fragment(between)) == 3


def corpus_questions(count: int = 24) -> list[str]:
    """Questions of the corpus, in file order."""
    lines = (CORPUS.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["question"]) for line in lines[:count]]


def with_trees(client: CanopyClient, items: Sequence[Item]) -> list[Item]:
    """The same items, each carrying the tree that the server's ``index`` model makes."""
    return [
        msgspec.structs.replace(item, tree=indexed.tree)
        for item, indexed in zip(items, client.index(items), strict=True)
    ]


def write_compress_input(path: Path, query: str, items: Sequence[Item]) -> None:
    """Write a perf_analyzer input file with one ``compress`` request."""
    content = [encode_item(item).decode() for item in items]
    data = [{"QUERY": {"content": [query], "shape": [1]}, "ITEMS": {"content": content, "shape": [len(content)]}}]
    path.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")


def write_index_input(path: Path, items: Sequence[Item]) -> None:
    """Write a perf_analyzer input file with one ``index`` request."""
    content = [encode_item(item).decode() for item in items]
    data = [{"ITEMS": {"content": content, "shape": [len(content)]}}]
    path.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")


def write_query_input(path: Path, queries: Sequence[str]) -> None:
    """Write a perf_analyzer input file with one ``embed_query`` request a query."""
    data = [{"QUERY": {"content": [query], "shape": [1]}} for query in queries]
    path.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")


def tree_bytes(items: Sequence[Item]) -> int:
    """Bytes that the trees add to a request, as base64."""
    return sum(len(base64.b64encode(item.tree)) for item in items if item.tree)


def _fill(own: Sequence[Item], pool: Sequence[Item], seed: int) -> Iterator[Item]:
    """A question's own items, then others of the pool."""
    known = {item.id for item in own}
    order = np.random.default_rng(seed).permutation(len(pool))
    others = [pool[place] for place in order if pool[place].id not in known]
    return itertools.islice(itertools.chain(own, others), PASSAGES)


def _in_turn(data: Path | None) -> Iterator[Question]:
    """Questions of the corpus, then of the sets, one of each set at a time."""
    sets = [list(_corpus())]
    if data is not None:
        for file in sorted(data.glob("*.questions.jsonl.gz")):
            if file.name.split(".")[0] not in _LEFT_OUT:
                sets.append(read_questions([file], "dev"))
    for row in itertools.zip_longest(*sets):
        yield from (question for question in row if question is not None)


def _corpus() -> Iterator[Question]:
    """The corpus' questions on passages and tables."""
    items: dict[str, Item] = {
        item.id: item
        for item in read_items([CORPUS / "passages.jsonl", CORPUS / "tables.jsonl"])
        if isinstance(item, TextItem | TableItem)
    }
    order = list(items)
    for line in (CORPUS.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        golds = msgspec.convert(fields["gold"], list[Gold])
        if not golds or not all(gold.item_id in items for gold in golds):
            continue
        names = list(dict.fromkeys(gold.item_id for gold in golds))
        place = order.index(names[0])
        names += [name for name in order[place + 1 :] + order[:place] if name not in names]
        yield Question(
            id=fields["id"],
            dataset="examples",
            split="dev",
            question=fields["question"],
            answers=tuple(fields["answers"]),
            items=tuple(items[name] for name in names[:PASSAGES]),
            gold=tuple(golds),
            meta={},
        )


def main() -> None:
    """Write input files for perf_analyzer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workload", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    queries = corpus_questions()
    write_compress_input(options.out / "compress.json", queries[0], passages())
    write_index_input(options.out / "index.json", passages())
    write_query_input(options.out / "embed_query.json", queries)


if __name__ == "__main__":
    main()
