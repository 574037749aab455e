"""What servers answer: protocol messages of Triton, chat completions, rows of the vector store."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from msgspec.structs import replace
from tritonclient.grpc import service_pb2 as pb

from canopy_backend.errors import CanopyError, CriticError, RetrievalError
from canopy_backend.evidence import encode_evidence, encode_trace
from canopy_backend.items import encode_item
from canopy_backend.reading import UNREADABLE
from canopy_client import codec
from canopy_client.cli import render
from canopy_client.llm.openai import completion_of
from canopy_fuzz.kinds import NotReached, Target
from canopy_fuzz.targets.examples import DIMENSION, ITEMS, blob_of, evidence_of
from canopy_milvus.rows import decode_row

_EVIDENCE: Final = [evidence_of(item) for item in ITEMS[:2]]


def messages(data: bytes) -> None:
    """A reply of one of the ensembles; bytes that are no protocol message never get past gRPC itself."""
    kind = data[0] % 4 if data else 0
    try:
        reply = (pb.ModelConfigResponse if kind == 3 else pb.ModelInferResponse).FromString(data[1:])
    except DecodeError:
        raise NotReached from None
    if kind == 0:
        found = codec.compress_response(reply, len(_EVIDENCE), trace=True)
        assert len(found) == len(_EVIDENCE)
        for one in found:
            render.evidence_tree(one)
    elif kind == 1:
        trees, vectors = codec.index_response(reply, 1)
        assert len(trees) == len(vectors) == 1
    elif kind == 2:
        assert codec.embed_query_response(reply, 1).shape[0] == 1
    else:
        codec.limits_from_config(reply)


def streams(data: bytes) -> None:
    """Messages of the critic's stream, split at a mark."""
    for part in data.split(b"\xff\xff\xff\xff"):
        try:
            message = pb.ModelStreamInferResponse.FromString(part)
        except DecodeError:
            raise NotReached from None
        chunk = codec.critic_chunk(message)
        assert chunk.prompt_tokens >= 0
        assert chunk.completion_tokens >= 0


def completions(data: bytes) -> None:
    """A chat completion of an endpoint that is none of ours."""
    completion = completion_of(data, "m@http://x")
    assert isinstance(completion.text, str)


def rows(data: bytes) -> None:
    """A row of the store, as JSON; whoever can write to the store chose it."""
    try:
        entity = msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE:
        raise NotReached from None
    encode_item(decode_row(entity))


def _reply(outputs: dict[str, bytes], shapes: dict[str, list[int]] | None = None) -> Any:
    reply = pb.ModelInferResponse(model_name="m")
    for name, content in outputs.items():
        reply.outputs.add(name=name, datatype="BYTES", shape=(shapes or {}).get(name, [1]))
        reply.raw_output_contents.append(content)
    return reply


def _message_seeds() -> list[bytes]:
    bare = [replace(one, trace=msgspec.UNSET) for one in _EVIDENCE]
    traces = [encode_trace(one.trace) for one in _EVIDENCE if one.trace]
    outputs = {"EVIDENCE": codec.frame([encode_evidence(one) for one in bare]), "TRACE": codec.frame(traces)}
    vector = np.ones(DIMENSION, np.float32).tobytes()
    shape = {"EMBEDDINGS": [1, DIMENSION], "EMBEDDING": [1, DIMENSION]}
    config = pb.ModelConfigResponse()
    config.config.parameters["max_items"].string_value = "64"
    return [
        b"\0" + _reply(outputs).SerializeToString(),
        b"\1" + _reply({"TREES": codec.frame([blob_of(ITEMS[0])]), "EMBEDDINGS": vector}, shape).SerializeToString(),
        b"\2" + _reply({"EMBEDDING": vector}, shape).SerializeToString(),
        b"\2" + _reply({"EMBEDDING": b""}, {"EMBEDDING": [0, 0]}).SerializeToString(),
        b"\3" + config.SerializeToString(),
        b"\0", b"",
    ]  # fmt: skip


def _stream_seeds() -> list[bytes]:
    texts = {
        "text_output": codec.frame([b"yes"]),
        "finish_reason": codec.frame([b"stop"]),
        "num_input_tokens": bytes(4),
    }
    final = pb.ModelStreamInferResponse(infer_response=_reply(texts))
    final.infer_response.parameters["triton_final_response"].bool_param = True
    wrong = pb.ModelStreamInferResponse(error_message="Error generating stream: x")
    odd = pb.ModelStreamInferResponse(infer_response=_reply({"finish_reason": b"\1\0\0\0a"}))
    return [final.SerializeToString(), wrong.SerializeToString(), odd.SerializeToString()]


def _row_seeds() -> list[bytes]:
    tree = base64.b64encode(blob_of(ITEMS[0])).decode()
    found = []
    for item, stored in ((ITEMS[0], True), (ITEMS[1], False)):
        entity = {"item_id": item.id, "item": [encode_item(item).decode()], "tree": [tree] if stored else []}
        found.append(msgspec.json.encode({**entity, "tree_stored": stored}))
    return [*found, b"{}", b'{"item":[1],"tree_stored":true}', b'{"item":["{}"],"tree_stored":0}']


TARGETS: Final = (
    Target(
        name="messages",
        decodes="a reply of Triton, protobuf",
        run=messages,
        allowed=(CanopyError,),
        seeds=_message_seeds,
        words=(
            b"EVIDENCE",
            b"TRACE",
            b"TREES",
            b"EMBEDDINGS",
            b"EMBEDDING",
            b"max_items",
            b"\xff\xff\xff\xff",
            b"[[[[",
        ),
        max_len=1800,
    ),
    Target(
        name="streams",
        decodes="the critic's stream, protobuf",
        run=streams,
        allowed=(CanopyError,),
        seeds=_stream_seeds,
        words=(
            b"text_output",
            b"finish_reason",
            b"num_input_tokens",
            b"num_output_tokens",
            b"triton_final_response",
            b"\xff\xff\xff\xff",
        ),
    ),
    Target(
        name="completions",
        decodes="a chat completion, JSON",
        run=completions,
        allowed=(CriticError,),
        seeds=lambda: [
            b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2}}',
            b'{"choices":[]}',
            b'{"choices":[{"message":{"content":null,"refusal":"no"}}],"usage":null}',
            b"<html>",
        ],
        words=(
            b'"choices":',
            b'"message":',
            b'"content":',
            b'"usage":',
            b"null",
            b"[[[[",
            b"\xff",
            b"\\ud800",
            b"1e999",
        ),
        max_len=300,
    ),
    Target(
        name="rows",
        decodes="a row of the vector store",
        run=rows,
        allowed=(RetrievalError,),
        seeds=_row_seeds,
        words=(
            b'"item":',
            b'"tree":',
            b'"tree_stored":true',
            b"\\u00e9",
            b"=",
            b"\\ud800",
            b'\\"modality\\":\\"text\\"',
        ),
        max_len=700,
    ),
)
