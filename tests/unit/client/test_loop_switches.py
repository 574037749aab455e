"""The switches of one question: what each changes, and what is refused."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import numpy as np
import pytest
from client_fakes import FakeCompressor, MemoryRetriever, ScriptedModel, table_item, text_item, verdict
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.errors import InvalidRequest
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.tree import Tree, content_hash, encode_tree
from canopy_client import LoopOptions, Orchestrator
from canopy_client.assembly import Assembler
from canopy_client.critic import LanguageModelCritic
from canopy_client.whole import whole

A, B, C = (text_item(name, title=name) for name in "ABC")
MORE = verdict("no", missing="m2", query="q2", answer="half")
YES = verdict("yes", answer="done")


def loop(items: dict[str, list[Item]], **parts: Any) -> tuple[Orchestrator, MemoryRetriever, FakeCompressor]:
    retriever, compressor = MemoryRetriever(items), FakeCompressor()
    llm = parts.pop("llm", None) or ScriptedModel(critic=[MORE, YES])
    return Orchestrator(retriever, compressor, llm, **parts), retriever, compressor


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"k": 0}, "k: 0 is not a whole number from 1 to 256"),
        ({"k": 257}, "k: 257"),
        ({"k": True}, "k: True"),
        ({"k": 2.5}, "k: 2.5"),
        ({"follow_up_k": 0}, "follow_up_k: 0"),
        ({"max_rounds": 11}, "max_rounds: 11 is not a whole number from 1 to 10"),
        ({"budget_tokens": 0}, "budget_tokens: 0"),
        ({"critic_tokens": 0}, "critic_tokens"),
        ({"reader_tokens": 100_000}, "reader_tokens"),
        ({"tables": "some"}, "tables: 'some' is none of classify, whole, lookup"),
        ({"compress": 1}, "compress: 1 is neither true nor false"),
        ({"tables": ["whole"]}, "tables"),
    ],
)
def test_a_value_out_of_range_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        LoopOptions(**given)


async def test_each_question_brings_its_own_switches() -> None:
    one, retriever, _ = loop({"q": [A], "q2": [B]}, options=LoopOptions(k=7))
    wide = await one.answer("q")
    narrow = await one.answer("q", options=LoopOptions(k=2, max_rounds=1))
    assert [k for _, k, _ in retriever.asked] == [7, 7, 2]
    assert (wide.options, narrow.options) == (LoopOptions(k=7), LoopOptions(k=2, max_rounds=1))
    assert narrow.llm_calls == {"reader": 1}


async def test_follow_ups_fetch_as_many_as_they_are_told() -> None:
    one, retriever, _ = loop({"q": [A], "q2": [B]})
    await one.answer("q", options=LoopOptions(k=10, follow_up_k=3))
    assert [k for _, k, _ in retriever.asked] == [10, 3]


@pytest.mark.parametrize(("tables", "whole_tables"), [("whole", True), ("lookup", False)])
async def test_tables_are_forced_without_asking_the_classifier(tables: Any, whole_tables: bool) -> None:
    one, _, compressor = loop({"q": [table_item("t")]}, llm=ScriptedModel(critic=[YES]))
    answer = await one.answer("q", options=LoopOptions(tables=tables))
    assert answer.llm_calls == {"critic": 1, "reader": 1}
    assert answer.tables_whole is whole_tables
    assert compressor.asked == [("q", ["t"], whole_tables)]


async def test_a_budget_of_the_request_holds_for_critic_and_reader() -> None:
    llm = ScriptedModel(critic=[YES])
    one, _, _ = loop({"q": [A, B]}, llm=llm)
    whole_prompt = (await one.answer("q")).tokens_read
    answer = await one.answer("q", options=LoopOptions(budget_tokens=whole_prompt - 1))
    assert [one.regions_shown for one in answer.evidence] == [1, 0]
    assert answer.tokens_read == whole_prompt // 2
    for role in ("critic", "reader"):
        before, after = llm.said_to(role)
        assert "Words of A." in after
        assert "Words of B." in before
        assert "Words of B." not in after


async def test_a_given_critic_with_its_own_model_is_counted_for_each_question() -> None:
    judge = LanguageModelCritic(ScriptedModel(critic=["?", MORE, YES, YES]), Assembler(), 50)
    one, _, _ = loop({"q": [A], "q2": [B]}, llm=ScriptedModel(), critic=judge)
    first, second = await one.answer("q"), await one.answer("q")
    assert first.llm_calls == {"critic": 3, "reader": 1}
    assert second.llm_calls == {"critic": 1, "reader": 1}


async def test_calls_are_counted_apart_for_questions_at_the_same_time() -> None:
    items: dict[str, list[Item]] = {"q": [A], "q2": [B], "other": [C]}

    class ByQuestion(ScriptedModel):
        async def generate(self, messages: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            script = YES if "<question>other" in messages[1].content else MORE
            self.scripts = {"critic": deque([script])}
            return await super().generate(messages, **options)

    one, _, _ = loop(items, llm=ByQuestion(critic=[YES]))
    answers = await asyncio.gather(*(one.answer(question) for question in ("q", "other") * 8))
    for answer in answers:
        assert answer.llm_calls == {"critic": 1 if answer.question == "other" else 2, "reader": 1}


async def test_without_compression_items_stay_whole_and_nobody_is_asked() -> None:
    text = TextItem(id="t", text="One is here. Two is there. Three is gone.", title="T")
    table = TableItem(id="tab", title="Tab", columns=["a", "b"], rows=[["1", "2"], ["3", "4"]])
    one, _, compressor = loop({"q": [text, table]}, llm=ScriptedModel(critic=[YES]))
    answer = await one.answer("q", options=LoopOptions(compress=False, trace=True))
    assert compressor.asked == []
    assert answer.llm_calls == {"critic": 1, "reader": 1}
    assert answer.tables_whole is None
    first, second = (one.evidence for one in answer.evidence)
    assert (first.text, first.whole, len(first.regions)) == (text.text, True, 1)
    assert (second.kept_fragments, second.fragments, second.whole) == (2, 2, True)
    assert answer.tokens_before == answer.tokens_after > 0
    assert all(one.original for one in answer.evidence)
    for one_trace in (first.trace, second.trace):
        assert [(node.node, node.outcome) for node in one_trace.nodes] == [(0, "kept")]  # type: ignore[union-attr]


def test_a_whole_item_takes_its_counts_from_its_tree() -> None:
    item = TextItem(id="t", text="One is here. Two is there. Three is gone.")
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    tree = Tree(
        revision="0" * 16, content=content_hash(item), fragments=fragments, hierarchy=hierarchy,
        vectors=np.zeros((hierarchy.size, 4), np.float16), tokens=np.array([4, 5, 6, 2], np.int32), reader=bytes(8),
    )  # fmt: skip
    indexed = TextItem(id="t", text=item.text, tree=encode_tree(tree))
    counted = whole(indexed, 0.5, lambda texts: [99] * len(texts))
    assert (counted.tokens_in, counted.tokens_kept, counted.regions[0].score) == (17, 17, 0.5)
    for bad in (b"", b"CNPYTREE" + bytes(80), b"nonsense", encode_tree(tree)[:-1]):
        broken = TextItem(id="t", text=item.text, tree=bad)
        assert whole(broken, 0.5, lambda texts: [99] * len(texts)).tokens_in == 99


ITEMS = st.one_of(
    st.builds(TextItem, id=st.just("i"), text=st.text(max_size=200), title=st.text(max_size=20)),
    st.lists(st.lists(st.text(max_size=5), min_size=2, max_size=2), max_size=5).map(
        lambda rows: TableItem(id="i", columns=["a", "b"], rows=rows)
    ),
    st.just(ImageItem(id="i", caption="A bridge.")),
    st.just(VideoItem(id="i", duration_s=65.0)),
)


@given(ITEMS)
def test_a_whole_item_is_one_region_over_all_of_it(item: Item) -> None:
    evidence = whole(item, 0.25, Assembler().count, trace=True)
    (region,) = evidence.regions
    assert (region.first, region.last, region.depth) == (0, evidence.fragments, 0)
    assert evidence.whole
    assert evidence.tokens_in == evidence.tokens_kept
    if isinstance(item, TextItem):
        assert evidence.text == item.text
