"""What a request carries beside items: its parameters, a server's limits, a critic's sampling, statuses."""

from __future__ import annotations

from typing import Final

import msgspec

from canopy_backend.errors import CanopyError, InvalidRequest
from canopy_backend.limits import Limits
from canopy_backend.triton.options import COMPRESS_OPTIONS, parse_options
from canopy_backend.triton.sampling import parse_sampling
from canopy_backend.triton.tensors import text
from canopy_client.status import error_from_status, shifted
from canopy_fuzz.kinds import Target

_CODES: Final = ("INVALID_ARGUMENT", "UNAVAILABLE", "INTERNAL", "CANCELLED", "RESOURCE_EXHAUSTED", "UNKNOWN")


def parameters(data: bytes) -> None:
    """The parameters of a request, as the server hands them over."""
    for known in (COMPRESS_OPTIONS, frozenset[str]()):
        options = parse_options(text(data, "parameters"), known)
        assert isinstance(options.trace, bool)
        assert isinstance(options.keep_tables_whole, bool)


def limits(data: bytes) -> None:
    """A server's published limits, one ``name=value`` a line."""
    lines = text(data, "limits").split("\n")
    found = Limits.from_parameters(dict(line.partition("=")[::2] for line in lines))
    assert Limits.from_parameters(found.to_parameters()) == found
    assert all(value >= 1 for value in msgspec.structs.astuple(found))


def sampling(data: bytes) -> None:
    """The critic's sampling parameters: JSON text, with JSON text inside."""
    values, structure = parse_sampling(text(data, "sampling_parameters"))
    assert not {"structured_outputs", "guided_decoding"} & values.keys()
    assert structure is None or len(structure) == 1


def statuses(data: bytes) -> None:
    """A server's status message, of which sizes, limits and places are read back."""
    code = _CODES[data[0] % len(_CODES)] if data else "UNKNOWN"
    error = error_from_status(code, data[1:].decode("utf-8", "replace"))
    assert isinstance(error, CanopyError)
    assert isinstance(shifted(error, 3), CanopyError)


_MESSAGES: Final = (
    "in ensemble 'compress', hierarchy: item 3 ('a'), field 'text': is not there",
    "hierarchy: item 3 ('a'): fragments: 5000 is over the limit max_fragments=4096",
    "item 2 ('b'): made by encoder 00 this server runs 11",
    "Received message larger than max (500 vs. 400)",
    "Exceeds maximum queue size",
    "timeout expired",
    "This protocol is restricted, expecting header",
)

TARGETS: Final = (
    Target(
        name="parameters",
        decodes="request parameters, JSON",
        run=parameters,
        allowed=(InvalidRequest,),
        max_len=200,
        seeds=lambda: [
            b"{}",
            b'{"canopy_trace":true,"priority":3}',
            b'{"canopy_keep_tables_whole":false}',
            b'{"canopy_x":[1]}',
            b'["canopy_"]',
            b'{"canopy_trace":"true"}',
            b'"canopy_',
        ],
        words=(b"canopy_", b"canopy_trace", b"canopy_keep_tables_whole", b"true", b"\\ud800", b"[[[[", b"1e999"),
    ),
    Target(
        name="limits",
        decodes="published limits",
        run=limits,
        allowed=(InvalidRequest,),
        max_len=200,
        seeds=lambda: [
            "\n".join(f"{name}={value}" for name, value in Limits(max_items=7).to_parameters().items()).encode(),
            b"max_items=0",
            b"max_items=1\nmax_rows=x",
            "max_items=\u0663".encode(),
            b"max_items=" + b"9" * 99,
        ],
        words=(b"max_items=", b"max_rows=", "²".encode(), b"_", b"0", b"99999999"),
    ),
    Target(
        name="sampling",
        decodes="sampling parameters, JSON in JSON",
        run=sampling,
        allowed=(InvalidRequest,),
        max_len=300,
        seeds=lambda: [
            b"",
            b'{"temperature":0,"max_tokens":"5"}',
            b'{"stop":["a"],"seed":1,"logit_bias":{"1":2}}',
            b'{"structured_outputs":"{\\"json\\":{\\"type\\":\\"object\\"}}"}',
            b'{"guided_decoding":"{\\"choice\\":[\\"a\\"]}"}',
            b'{"guided_decoding":"{}","structured_outputs":"{}"}',
            b"[]",
        ],
        words=(
            b"temperature",
            b"guided_decoding",
            b"structured_outputs",
            b'\\"json\\":',
            b"\\ud800",
            b"null",
            b"1e999",
        ),
    ),
    Target(
        name="statuses",
        decodes="a server's status message",
        run=statuses,
        allowed=(),
        seeds=lambda: [bytes([place]) + message.encode() for place, message in enumerate(_MESSAGES)],
        words=(
            b"item 1 ('",
            b"'), field '",
            b" is over the limit ",
            b"larger than max (",
            b" vs. ",
            b": 1",
            b"99999999",
        ),
    ),
)
