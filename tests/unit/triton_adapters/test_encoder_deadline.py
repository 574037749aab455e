"""Work for requests whose time is over ends between two calls of the graph."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from canopy_backend.errors import DeadlineExceeded
from canopy_backend.triton.encoder import Encoder, OpenVinoSession, give_up_at
from canopy_backend.triton.model import Setting


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A graph that gives its ids as floats, one row a call."""
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "l"]) for name in names]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", "l"])
    nodes = [
        helper.make_node("Mul", list(names), ["product"]),
        helper.make_node("Cast", ["product"], ["embedding"], to=TensorProto.FLOAT),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "ids", inputs, [output]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path: Path = tmp_path_factory.mktemp("graph") / "model.onnx"
    onnx.save(model, str(path))
    return Encoder(OpenVinoSession(path, threads=1), chunk_tokens=4)


def rows(n: int) -> dict[str, np.ndarray]:
    ids = np.arange(4 * n, dtype=np.int64).reshape(n, 4)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def test_time_that_is_left_changes_nothing(encoder: Encoder) -> None:
    first, second = encoder.together([rows(3), rows(2)], until=time.monotonic() + 60)
    assert first.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert second.tolist() == np.arange(8).reshape(2, 4).tolist()


def test_no_call_is_begun_after_the_time(encoder: Encoder) -> None:
    with pytest.raises(DeadlineExceeded, match="over after 0 of 3 rows"):
        encoder.together([rows(3)], until=time.monotonic() - 1)
    idle = {name: np.zeros_like(array) for name, array in rows(2).items()}
    assert not encoder(idle, until=time.monotonic() - 1).any()  # a row that is all padding needs none


def test_a_batch_goes_on_for_whoever_waits_longest() -> None:
    now = time.monotonic()
    assert 2.0 <= give_up_at([500_000, 2_000_000]) - now < 3.0
    assert give_up_at([500_000, 0]) == math.inf
    assert give_up_at([]) == math.inf


@pytest.mark.parametrize(("given", "cached"), [({"enable": True}, True), ({"enable": False}, False), (None, False)])
def test_a_model_knows_whether_its_responses_are_kept(given: dict[str, bool] | None, cached: bool) -> None:
    config: dict[str, object] = {"output": [{"name": "embedding"}]}
    if given is not None:
        config["response_cache"] = given
    arguments = {"model_config": json.dumps(config), "model_repository": "/models/query_encoder", "model_version": "1"}
    assert Setting.from_args(arguments).cached is cached
