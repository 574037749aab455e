"""Messages both ways: framing, tensors, parameters, replies that do not add up."""

from __future__ import annotations

import numpy as np
import pytest
from client_fakes import chunk, make_evidence, reply, text_item
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from canopy_backend.errors import CanopyError, InvalidRequest
from canopy_backend.evidence import encode_evidence
from canopy_client import codec
from canopy_client.codec import RequestOptions


@given(st.lists(st.binary(max_size=40)))
def test_framing_is_lossless(values: list[bytes]) -> None:
    assert codec.unframe(codec.frame(values)) == values


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.data())
def test_a_cut_tensor_is_told(values: list[bytes], data: st.DataObject) -> None:
    payload = codec.frame(values)
    whole = {len(codec.frame(values[:n])) for n in range(len(values) + 1)}
    cut = (
        data.draw(st.integers(1, len(payload) - 1).filter(lambda place: place not in whole)) if len(payload) > 1 else 0
    )
    with pytest.raises(CanopyError, match="BYTES tensor"):
        codec.unframe(payload[:cut])


def test_compress_request_has_the_tensors_of_the_protocol() -> None:
    options = RequestOptions({"canopy_trace": True, "n": 3, "s": "x"}, timeout_us=250, request_id="r1")
    request = codec.compress_request("Qué\0", [b"{}", b"[]"], options)
    assert [(one.name, one.datatype, list(one.shape)) for one in request.inputs] == [
        ("QUERY", "BYTES", [1]),
        ("ITEMS", "BYTES", [2]),
    ]
    assert codec.unframe(request.raw_input_contents[0]) == ["Qué\0".encode()]
    assert codec.unframe(request.raw_input_contents[1]) == [b"{}", b"[]"]
    assert request.parameters["canopy_trace"].bool_param is True
    assert request.parameters["n"].int64_param == 3
    assert request.parameters["s"].string_param == "x"
    assert request.parameters["timeout"].int64_param == 250
    assert request.id == "r1"


def test_items_that_all_bring_trees_go_to_the_model_without_node_encoder() -> None:
    tree, none, cold = b'{"id":"a","tree":"AAAA"}', b'{"id":"b","tree":null}', b'{"id":"c"}'
    assert codec.compress_request("q", [tree, tree]).model_name == "compress_indexed"
    for items in ([tree, none], [tree, cold], [cold], [b"no JSON"], []):
        assert codec.compress_request("q", items).model_name == "compress"


def test_critic_request_asks_for_the_answer_alone_and_the_counts() -> None:
    request = codec.critic_request("critic", "Hi", {"max_tokens": 5})
    raw = dict(zip([one.name for one in request.inputs], request.raw_input_contents, strict=True))
    assert codec.unframe(raw["sampling_parameters"]) == [b'{"max_tokens":5}']
    assert raw["stream"] == b"\0"
    asked = {"exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"}
    assert {name for name, value in raw.items() if value == b"\1"} == asked


def test_evidence_with_and_without_trace() -> None:
    payload = encode_evidence(make_evidence(text_item("a")))
    (plain,) = codec.compress_response(reply(EVIDENCE=[payload], TRACE=[]), 1, trace=False)
    assert not plain.trace
    (traced,) = codec.compress_response(reply(EVIDENCE=[payload], TRACE=[b'{"nodes":[]}']), 1, trace=True)
    assert traced.trace
    assert traced.item_id == plain.item_id == "a"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (reply(EVIDENCE=[]), "EVIDENCE has 0 elements for 1 sent"),
        (reply(TRACE=[]), "no output 'EVIDENCE'"),
        (reply(EVIDENCE=[b"{"]), "same version"),
        (reply(EVIDENCE=[b"\xff"]), "same version"),
    ],
)
def test_replies_of_another_form(response: object, words: str) -> None:
    with pytest.raises(CanopyError, match=words):
        codec.compress_response(response, 1, trace=False)


def test_vectors_keep_values_and_refuse_other_shapes() -> None:
    vectors = np.array([[1.5, -2], [3, 4]], np.float32)
    assert np.array_equal(codec.embed_query_response(reply(EMBEDDING=vectors), 2), vectors)
    with pytest.raises(CanopyError, match="EMBEDDING"):
        codec.embed_query_response(reply(EMBEDDING=vectors), 3)
    with pytest.raises(CanopyError, match="bytes for the shape"):
        codec.embed_query_response(reply(EMBEDDING=vectors[0]), 2)


def test_critic_chunk() -> None:
    assert codec.critic_chunk(chunk("yes")) == codec.CriticChunk("yes", "stop", 7, 3, True)
    with pytest.raises(CanopyError, match="no such thing"):
        codec.critic_chunk(pb.ModelStreamInferResponse(error_message="no such thing"))


def test_limits_of_a_model_configuration() -> None:
    response = pb.ModelConfigResponse()
    response.config.parameters["max_items"].string_value = "3"
    response.config.parameters["other"].string_value = "x"
    assert codec.limits_from_config(response).max_items == 3
    response.config.parameters["max_items"].string_value = "-3"
    with pytest.raises(InvalidRequest, match="max_items"):
        codec.limits_from_config(response)
