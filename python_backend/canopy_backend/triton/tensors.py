"""Tensors of requests and responses as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidRequest
from canopy_backend.triton.backend import pb_utils

Array: TypeAlias = npt.NDArray[Any]


def read(request: Any, name: str) -> Array:
    """An input of a request; strings come as an object array of bytes. Call it while the request is alive.

    Raises:
        InvalidRequest: The request has no such input.
    """
    tensor = pb_utils().get_input_tensor_by_name(request, name)
    if tensor is None:
        raise InvalidRequest(f"input {name!r} is missing")
    array: Array = tensor.as_numpy()
    return array


def read_all(request: Any, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Array]:
    """Inputs of a request as :func:`read` gives each; the server's objects are made once for all of them.

    Raises:
        InvalidRequest: The request lacks one that is not optional.
    """
    found = {tensor.name(): tensor for tensor in request.inputs()}
    for name in names:
        if name not in found:
            raise InvalidRequest(f"input {name!r} is missing")
    return {name: found[name].as_numpy() for name in (*names, *optional) if name in found}


def response(outputs: Mapping[str, Array]) -> Any:
    """A response with the given outputs."""
    utils = pb_utils()
    return utils.InferenceResponse(
        output_tensors=[utils.Tensor(name, np.ascontiguousarray(array)) for name, array in outputs.items()]
    )


def failure(error: Any) -> Any:
    """A response that is an error."""
    return pb_utils().InferenceResponse(output_tensors=[], error=error)


def string_list(array: Array) -> list[bytes]:
    """The strings of a tensor of one dimension."""
    values: list[bytes] = array.ravel().tolist()
    return values


def string_array(values: Sequence[bytes]) -> Array:
    """An object array ``[n]``, the form that keeps trailing NUL bytes."""
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


def text(value: bytes, what: str) -> str:
    """A string input as text.

    Raises:
        InvalidRequest: Not UTF-8; ``what`` names the input.
    """
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what}: not valid UTF-8 at byte {error.start}") from None
