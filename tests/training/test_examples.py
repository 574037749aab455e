"""What is scored in training is what the server scores: pooled nodes and decisions equal the serving path's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from question_toys import NOUNS, question, table_question, text_question

from canopy_backend.encoding import node_vectors, plan_nodes
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.packing import pack
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.graphs import NodeGraph, load_backbone
from canopy_export.source import Source
from canopy_training.batches import batches
from canopy_training.data import Question
from canopy_training.encoder import collate, decided, node_scores
from canopy_training.examples import Example, make_examples
from canopy_training.gold import locate
from canopy_training.instances import correct, instances

LONG_LEAF = " ".join(NOUNS * 4) + ". n1 is near. n2 is far."
CASES = {
    "short": text_question("n1 is near n2. n3 is far. n4 is near. n5 is far.", (0, 3)),
    "two gold": text_question("n1 is near n2. n3 is far. n4 is near. n5 is far.", (0, 3), (40, 41)),
    "longer than a window": text_question(" ".join(f"{noun} is near {noun}." for noun in NOUNS * 2), (30, 35)),
    "a leaf longer than a window": text_question(LONG_LEAF, (len(LONG_LEAF) - 5, len(LONG_LEAF))),
    "a long title": text_question("n1 is near. n2 is far. n3 is near.", (0, 3), title="title " * 40),
    "table": table_question(30, 4, 5, 17),
}


@pytest.fixture(scope="module")
def graph(source: Source) -> NodeGraph:
    return NodeGraph(load_backbone(str(source.path)), source.pooling).eval()


@pytest.fixture(scope="module")
def tokenizer(source: Source) -> EncoderTokenizer:
    return EncoderTokenizer(source.tokenizer, source.window)


def made(case: Question, tokenizer: EncoderTokenizer, encoding: str, max_tokens: int = 100_000) -> list[Example]:
    examples, _ = make_examples([case], tokenizer, node_encoding=encoding, branching=2, max_tokens=max_tokens)
    return examples


@pytest.mark.parametrize("encoding", ["separate", "contextual"])
@pytest.mark.parametrize("name", CASES)
def test_scores_and_decisions_are_those_of_the_serving_path(
    name: str, encoding: str, graph: NodeGraph, tokenizer: EncoderTokenizer
) -> None:
    case = CASES[name]
    query = torch.nn.functional.normalize(torch.randn(1, 32, generator=torch.Generator().manual_seed(3)), dim=1)
    (located,), _ = locate(case)
    item = located.item
    hierarchy = balanced(len(fragment(item)))
    plan = plan_nodes(item, fragment(item), hierarchy, tokenizer, encoding)
    rows = pack(plan.sequences, 64, plan.layouts)
    with torch.inference_mode():
        tensors = (rows.input_ids, rows.segment_ids, rows.position_ids, rows.slot_ids)
        answer = graph(*map(torch.from_numpy, tensors)).numpy()
        parts = answer[rows.slots[:, 0], rows.slots[:, 1]]
    vectors = node_vectors(hierarchy, plan.nodes, plan.weights, parts, encoding).astype(np.float32)
    served = vectors @ query[0].numpy()
    found = instances(hierarchy, located.gold)

    examples = made(case, tokenizer, encoding)
    assert sum(example.n_instances for example in examples) == len(found)
    batch = collate(examples)
    with torch.inference_mode():
        scores = node_scores(graph, batch, query)
    # The pairs of all examples are the item's pairs in order, so their scores can be laid side by side.
    np.testing.assert_allclose(scores[batch.pairs].numpy(), served[found.pairs], atol=2e-3)
    margins = np.abs(served[found.pairs[:, 0]] - served[found.pairs[:, 1]])
    if margins.min() > 4e-3:  # float16 cannot have turned a decision
        assert decided(batch, scores).tolist() == correct(hierarchy, found, served).tolist()


@pytest.mark.parametrize("encoding", ["separate", "contextual"])
def test_an_example_scores_alike_alone_and_in_company(
    encoding: str, graph: NodeGraph, tokenizer: EncoderTokenizer
) -> None:
    examples = [example for case in CASES.values() for example in made(case, tokenizer, encoding)]
    query = torch.nn.functional.normalize(torch.ones(1, 32), dim=1)
    with torch.inference_mode():
        together = node_scores(graph, collate(examples), query)
        alone = torch.cat([node_scores(graph, collate([example]), query) for example in examples])
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("encoding", ["separate", "contextual"])
def test_gradients_reach_the_weights_through_pooled_nodes(
    encoding: str, source: Source, tokenizer: EncoderTokenizer
) -> None:
    graph = NodeGraph(load_backbone(str(source.path)), source.pooling)
    query = torch.nn.functional.normalize(torch.ones(1, 32), dim=1)
    node_scores(graph, collate(made(CASES["longer than a window"], tokenizer, encoding)), query).sum().backward()
    first = next(weight for name, weight in graph.named_parameters() if "layer.0.attention.self.query.weight" in name)
    assert first.grad is not None
    assert torch.isfinite(first.grad).all()
    assert first.grad.abs().max() > 0


def test_only_what_the_decisions_need_is_encoded(tokenizer: EncoderTokenizer) -> None:
    (example,) = made(CASES["short"], tokenizer, "separate")
    # Root, its halves, and the two leaves of the first half; not those of the second.
    assert (len(example.sequences), example.n_nodes, example.n_instances) == (5, 5, 2)


def test_what_is_too_long_for_a_step_is_counted_and_named(tokenizer: EncoderTokenizer) -> None:
    for encoding in ("separate", "contextual"):
        examples, tally = make_examples(
            [CASES["longer than a window"]], tokenizer, node_encoding=encoding, branching=2, max_tokens=150
        )
        assert tally.oversized_instances > 0
        every = sum(example.n_instances for example in made(CASES["longer than a window"], tokenizer, encoding))
        assert tally.oversized_instances + tally.instances == every
        assert tally.oversized[0].startswith("question 'qx', item 'x': ")
        assert all(example.tokens <= 150 for example in examples)


def test_a_large_item_becomes_several_examples_with_the_same_instances(tokenizer: EncoderTokenizer) -> None:
    whole = made(CASES["table"], tokenizer, "separate")
    cut = made(CASES["table"], tokenizer, "separate", max_tokens=400)
    assert len(cut) > len(whole)
    assert sum(example.n_instances for example in cut) == sum(example.n_instances for example in whole)
    assert sum(len(example.pairs) for example in cut) == sum(len(example.pairs) for example in whole)


def test_steps_hold_every_example_once_and_keep_to_the_size(tokenizer: EncoderTokenizer) -> None:
    examples, _ = make_examples(
        [question(seed) for seed in range(60)], tokenizer, node_encoding="separate", branching=2, max_tokens=512
    )
    first, again, other = (batches(examples, 512, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert first == again
    assert first != other
    assert sorted(place for step in first for place in step) == list(range(len(examples)))
    assert all(sum(examples[place].tokens for place in step) <= 512 for step in first)
