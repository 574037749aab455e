"""What every adapter has in common: starting, and answering requests one by one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from canopy_backend.errors import code_of
from canopy_backend.triton import tensors
from canopy_backend.triton.backend import pb_utils, prepare_process
from canopy_backend.triton.errors import to_triton
from canopy_backend.triton.logs import RequestLog
from canopy_backend.triton.metrics import Metrics, Tally
from canopy_backend.triton.options import Options, parse_options
from canopy_backend.triton.tensors import Array
from canopy_backend.triton.waiting import ARRIVAL, check_wait, give_up_at, waited_s


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a model finds what it needs.

    Attributes:
        repository: The model repository; exported files lie in the encoders' folders.
        parameters: The model's own parameters, as text.
        folder: The model's own folder.
        version: Version that is being served, the name of a folder inside ``folder``.
        outputs: Names of the model's outputs.
        cached: Whether the server keeps its responses.
    """

    repository: Path
    parameters: Mapping[str, str]
    folder: Path
    version: str
    outputs: tuple[str, ...]
    cached: bool = False

    @classmethod
    def from_args(cls, args: Mapping[str, str]) -> Setting:
        """Read what the server hands to ``initialize``."""
        config = msgspec.json.decode(args["model_config"])
        folder = Path(args["model_repository"])
        return cls(
            repository=folder.parent,
            parameters={name: value["string_value"] for name, value in config.get("parameters", {}).items()},
            folder=folder,
            version=args["model_version"],
            outputs=tuple(output["name"] for output in config["output"]),
            cached=bool(config.get("response_cache", {}).get("enable", False)),
        )


class Model(ABC):
    """A model without a batch axis: each request is answered by itself, and fails by itself.

    Attributes:
        stage: Name of the model in messages and metrics.
        inputs: Names of its inputs.
        optional: Names of inputs that a request may lack. One that brings ``ARRIVAL`` is refused after
            ``longest_wait_s`` or its caller's time, before its other inputs are read.
        options: Request options that it takes.
        longest_wait_s: Seconds.
        waited_s: Seconds that the request in hand waited since its ``ARRIVAL``; 0 where it brings none.
        until: Moment of :func:`time.monotonic` after which nobody waits any more for the request in hand.
        request_id: Its id, which calls of other models carry on.
    """

    stage: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[frozenset[str]] = frozenset()
    longest_wait_s: float = math.inf
    waited_s: float = 0.0
    until: float = math.inf
    request_id: str = ""

    @abstractmethod
    def load(self, setting: Setting) -> None:
        """Read tokenizers, manifests and limits; called once.

        Raises:
            CanopyError: Something is missing or does not fit; the server then refuses to start the model.
        """

    @abstractmethod
    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Answer one request: all outputs of the model.

        Raises:
            CanopyError: The request is refused.
        """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by the server when it loads the model."""
        prepare_process()
        self.load(Setting.from_args(args))
        self._metrics = Metrics(self.stage)
        self._log = RequestLog.of_environment(self.stage)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Called by the server; one response a request."""
        tally = Tally()
        responses = [self._respond(request, tally) for request in requests]
        self._metrics.flush(tally)
        return responses

    def finalize(self) -> None:
        """Called by the server when it unloads the model."""
        self._metrics.close()

    def _take(self, request: Any) -> None:
        """Make a request the one in hand, unless it has waited too long."""
        since = pb_utils().get_input_tensor_by_name(request, ARRIVAL) if ARRIVAL in self.optional else None
        self.waited_s = 0.0 if since is None else waited_s(since.as_numpy())
        check_wait(self.waited_s, timeout_us=request.timeout(), longest_s=self.longest_wait_s)
        self.until, self.request_id = give_up_at([request.timeout()], self.waited_s), request.request_id()

    def _respond(self, request: Any, tally: Tally) -> Any:
        try:
            with tally.timed():
                self._take(request)
                options = parse_options(request.parameters(), self.options)
                inputs = tensors.read_all(request, self.inputs, self.optional)
                response = tensors.response(self.answer(inputs, options, tally))
        except Exception as error:  # one bad request must not fail those beside it
            tally.add("canopy_errors_total", code=code_of(error))
            self._log.failed(request.request_id(), error)
            return tensors.failure(to_triton(error, self.stage))
        self._log.answered(request.request_id(), tally.seconds[-1])
        return response
