"""The critic's ``sampling_parameters``: one JSON text, checked here so that a bad value is named, not swallowed."""

from __future__ import annotations

from typing import Any

import msgspec

from canopy_backend.errors import InvalidRequest
from canopy_backend.reading import UNREADABLE, told

INPUT = "sampling_parameters"


class Structured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The shape that an answer must have; exactly one field is given.

    Attributes:
        json: A JSON schema, or its text.
        regex: A regular expression.
        choice: The allowed answers.
        grammar: A grammar in EBNF.
        json_object: ``true`` for any JSON object.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request may ask of the sampler; names and meaning are vLLM's.

    ``structured_outputs`` and its name until Triton 25.10, ``guided_decoding``, are JSON texts inside the JSON text,
    as the vLLM backend takes them.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: str | None = None
    guided_decoding: str | None = None


def parse_sampling(text: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read the JSON text of a request.

    Args:
        text: A JSON object; empty means vLLM's defaults. Numbers may be given as text, as the vLLM backend allows.

    Returns:
        The values that were given, without the structure; and the structure's fields, or ``None``.

    Raises:
        InvalidRequest: Not a JSON object, an unknown parameter or a wrong type; the message names the parameter.
    """
    if not text.strip():
        return {}, None
    values = msgspec.to_builtins(_decode(text, Sampling, INPUT))
    newer, older = values.pop("structured_outputs", None), values.pop("guided_decoding", None)
    if newer is not None and older is not None:
        raise InvalidRequest(f"{INPUT}: 'structured_outputs' and 'guided_decoding' are one parameter; give one of them")
    name = "structured_outputs" if older is None else "guided_decoding"
    shape = newer if older is None else older
    if shape is None:
        return values, None
    structure = msgspec.to_builtins(_decode(shape, Structured, f"{INPUT}: {name!r}"))
    if len(structure) != 1:
        allowed = ", ".join(Structured.__struct_fields__)
        raise InvalidRequest(f"{INPUT}: {name!r} takes exactly one of {allowed}; {len(structure)} given")
    return values, structure


def _decode(text: str, kind: type[Any], what: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        name = path.rstrip("`").lstrip(".")
        if "unknown field" in reason:
            unknown = reason.rsplit("`", 2)[1]
            raise InvalidRequest(f"{what}: unknown parameter {unknown!r}") from None
        raise InvalidRequest(f"{what}: {f'{name!r}: ' if name else ''}{reason}") from None
    except UNREADABLE as error:
        raise InvalidRequest(f"{what}: not a JSON object ({told(error)})") from None
