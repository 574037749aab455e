"""The graphs in torch: a segment of a packed row has the vector it has alone, for every pooling and both mask kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from canopy_export.graphs import NodeGraph, QueryGraph
from canopy_export.onnx_graph import packed_rows


def bert(kind: str = "bert") -> torch.nn.Module:
    from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model, RobertaConfig, RobertaModel

    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 140}
    if kind == "qwen3":
        model = Qwen3Model(Qwen3Config(**sizes, num_key_value_heads=1, head_dim=8, attn_implementation="eager"))
    elif kind == "roberta":
        model = RobertaModel(
            RobertaConfig(**sizes, pad_token_id=1, attn_implementation="eager"), add_pooling_layer=False
        )
    else:
        model = BertModel(BertConfig(**sizes, attn_implementation="eager"), add_pooling_layer=False)
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "mean"), ("bert", "cls"), ("bert", "last"), ("roberta", "mean"), ("qwen3", "last")]
)
def test_packed_equals_alone(kind: str, pooling: str) -> None:
    backbone = bert(kind)
    inputs = packed_rows(50, [[20, 7, 3, 1], [30], [8] * 4], 32)
    with torch.inference_mode():
        packed = NodeGraph(backbone, pooling).eval()(*inputs.values())
        assert packed.shape == (3, 8, 16)
        segments = inputs["segment_ids"]
        for row in range(3):
            for slot in range(8):
                ids = inputs["input_ids"][row][segments[row] == slot + 1][None]
                if ids.shape[1] == 0:
                    assert not packed[row, slot].any()
                    continue
                alone = QueryGraph(backbone, pooling).eval()(ids, torch.ones_like(ids))[0]
                np.testing.assert_allclose(torch.nn.functional.normalize(packed[row, slot], dim=0), alone, atol=2e-6)
                assert float(alone.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_padding_on_either_side_changes_nothing(pooling: str) -> None:
    graph = QueryGraph(bert(), pooling).eval()
    ids = torch.randint(1, 50, (1, 9))
    zeros = torch.zeros((1, 5), dtype=torch.int64)
    ones = torch.ones_like(ids)
    with torch.inference_mode():
        alone = graph(ids, ones)
        right = graph(torch.cat([ids, zeros], 1), torch.cat([ones, zeros], 1))
        left = graph(torch.cat([zeros, ids], 1), torch.cat([zeros, ones], 1))
    np.testing.assert_allclose(right, alone, atol=2e-6)
    np.testing.assert_allclose(left, alone, atol=2e-6)


def test_an_empty_row_is_zeros_and_finite() -> None:
    zeros = torch.zeros((2, 64), dtype=torch.int64)
    with torch.inference_mode():
        assert not NodeGraph(bert(), "mean").eval()(zeros, zeros, zeros, zeros).any()
        assert not QueryGraph(bert(), "mean").eval()(zeros, zeros).any()


def test_slots_are_means_of_their_tokens_states() -> None:
    backbone = bert()
    inputs = packed_rows(50, [[20, 7, 3, 1], [30], [8] * 4], 32, parts=3)
    with torch.inference_mode():
        packed = NodeGraph(backbone, "mean").eval()(*inputs.values())
        ids, segments, _, slots = inputs.values()
        for row in range(3):
            for slot in range(1, 9):
                places = torch.nonzero(slots[row] == slot)[:, 0]
                if not len(places):
                    assert not packed[row, slot - 1].any()
                    continue
                segment = torch.nonzero(segments[row] == segments[row, places[0]])[:, 0]
                alone = backbone(input_ids=ids[row, segment][None]).last_hidden_state[0]
                np.testing.assert_allclose(packed[row, slot - 1], alone[places - segment[0]].mean(0), atol=2e-6)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gradients_pass_under_autocast(attention: str) -> None:
    backbone = bert()
    backbone.set_attn_implementation(attention)
    graph = NodeGraph(backbone, "mean")
    inputs = packed_rows(50, [[20, 7, 3, 1], [30]], 32, parts=2)
    exact = graph(*inputs.values()).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = graph(*inputs.values())
    assert output.dtype == torch.float32
    cosines = torch.nn.functional.cosine_similarity(output.detach(), exact, dim=-1)[exact.any(-1)]
    assert float(cosines.min()) > 0.99
    output.square().sum().backward()
    for name, weight in backbone.named_parameters():
        assert weight.grad is not None, name
        assert bool(torch.isfinite(weight.grad).all()), name
