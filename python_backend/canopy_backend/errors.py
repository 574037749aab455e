"""Every error of the project, and the one table that maps them to gRPC.

    CanopyError
    ├── InvalidRequest            INVALID_ARGUMENT   a query, parameter or tensor is not what the model takes
    │   ├── InvalidItem           INVALID_ARGUMENT   one item of the request; names the item and its field
    │   └── Restricted            INVALID_ARGUMENT   a call that the server opens only to those who hold its key
    ├── LimitExceeded             INVALID_ARGUMENT   a size is over a published limit; names both
    ├── EncoderMismatch           INVALID_ARGUMENT   a tree or collection was made by another encoder revision
    ├── EncoderFailure            INTERNAL           an encoder returned vectors that are not finite
    ├── Overloaded                RESOURCE_EXHAUSTED the server's queue is full
    ├── ServerUnavailable         UNAVAILABLE        no server answered; safe to send again
    ├── DeadlineExceeded          DEADLINE_EXCEEDED  the caller's deadline passed
    ├── RetrievalError            INTERNAL           the vector store refused or failed
    ├── CriticError               INTERNAL           the language model failed or answered nonsense twice
    ├── ExportError               FAILED_PRECONDITION an artefact is missing or did not pass its gate
    ├── TrainingError             FAILED_PRECONDITION a training run or an evaluation cannot start or go on
    │   └── InvalidData           FAILED_PRECONDITION a line of a data file is malformed; names file, line, field
    └── StackError                FAILED_PRECONDITION the local stack cannot be set up, started or stopped
        ├── StandsStill           FAILED_PRECONDITION a server that was started does nothing
        └── PortBusy              FAILED_PRECONDITION another program listens on a port that a server needs

``CODES`` below is the only place where an error class meets a status code. The Triton adapters and the gRPC client
both read it, so what the server says is what the client raises.
"""

from __future__ import annotations

from typing import Final


class CanopyError(Exception):
    """Base class of every error that this project raises on purpose."""


class InvalidRequest(CanopyError):
    """The request as a whole is malformed: an empty query, a wrong tensor, an unknown parameter."""


class InvalidItem(InvalidRequest):
    """One item of a request is malformed.

    Args:
        reason: What is wrong and what is expected, a sentence without a full stop.
        index: Position of the item in the request, from 0; ``None`` where there is no request.
        item_id: The item's own id where it could be read.
        field: Name of the offending field; ``None`` when the item as a whole is meant.
    """

    def __init__(
        self, reason: str, *, index: int | None = None, item_id: str | None = None, field: str | None = None
    ) -> None:
        self.reason = reason
        self.index = index
        self.item_id = item_id
        self.field = field
        where = "item" if index is None else f"item {index}"
        if item_id:
            where += f" ({item_id!r:.80})"
        if field:
            where += f", field {field!r}"
        super().__init__(f"{where}: {reason}")

    def at(self, index: int) -> InvalidItem:
        """The same error, told where in the request the item stands."""
        return InvalidItem(self.reason, index=index, item_id=self.item_id, field=self.field)


class Restricted(InvalidRequest):
    """The server answers this call only with a key: its operator restricted the protocol."""


class LimitExceeded(CanopyError):
    """A size is over a limit that the server publishes.

    Args:
        what: The thing that was measured, for instance ``"item 3 ('a'): fragments"``.
        actual: Its size.
        limit: The largest size allowed.
        name: The limit's name in :class:`canopy_backend.limits.Limits`.
    """

    def __init__(self, what: str, *, actual: int, limit: int, name: str) -> None:
        self.actual = actual
        self.limit = limit
        self.name = name
        super().__init__(f"{what}: {actual} is over the limit {name}={limit}")


class EncoderMismatch(CanopyError):
    """Vectors of two encoder revisions would have met; the message names both."""


class EncoderFailure(CanopyError):
    """An encoder returned NaN or infinite values."""


class Overloaded(CanopyError):
    """The server refused the request because its queue is full."""


class ServerUnavailable(CanopyError):
    """No server answered, or it is shutting down."""


class DeadlineExceeded(CanopyError):
    """The caller's deadline passed before the answer was there."""


class RetrievalError(CanopyError):
    """The vector store refused a call or failed."""


class CriticError(CanopyError):
    """The language model failed, or gave an unusable answer twice."""


class ExportError(CanopyError):
    """An export is incomplete or did not pass a parity gate."""


class TrainingError(CanopyError):
    """A training run or an evaluation cannot start or go on; the message says what to change."""


class InvalidData(TrainingError):
    """One line of a data file is malformed.

    Args:
        reason: What is wrong and what is expected, a sentence without a full stop.
        file: The file.
        line: The line's number, from 1; ``None`` when the file as a whole is meant.
        field: Path of the offending field, for instance ``"gold[1].span"``.
    """

    def __init__(self, reason: str, *, file: str, line: int | None = None, field: str | None = None) -> None:
        self.file = file
        self.line = line
        self.field = field
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}, field {field!r}: {reason}" if field else f"{where}: {reason}")


class StackError(CanopyError):
    """The local stack cannot be set up, started or stopped; the message says what to do."""


class StandsStill(StackError):
    """A starting server does nothing: Triton 24.10 can wait without end for a model's process that it started."""


class PortBusy(StackError):
    """Another program listens on a port that a server needs.

    Args:
        port: The port.
        host: Its address.
        purpose: What the port is for, for instance ``"evidence gRPC"``.
        variable: Environment variable that moves it.
    """

    def __init__(self, port: int, *, host: str, purpose: str, variable: str) -> None:
        self.port = port
        self.variable = variable
        super().__init__(
            f"port {port} on {host} ({purpose}) is in use by another program; "
            f"stop that, or set {variable} to a free port"
        )


#: gRPC status code names by error class; a subclass without an entry takes its parent's.
CODES: Final[dict[type[CanopyError], str]] = {
    InvalidRequest: "INVALID_ARGUMENT",
    LimitExceeded: "INVALID_ARGUMENT",
    EncoderMismatch: "INVALID_ARGUMENT",
    EncoderFailure: "INTERNAL",
    Overloaded: "RESOURCE_EXHAUSTED",
    ServerUnavailable: "UNAVAILABLE",
    DeadlineExceeded: "DEADLINE_EXCEEDED",
    RetrievalError: "INTERNAL",
    CriticError: "INTERNAL",
    ExportError: "FAILED_PRECONDITION",
    TrainingError: "FAILED_PRECONDITION",
    StackError: "FAILED_PRECONDITION",
    CanopyError: "INTERNAL",
}


def code_of(error: BaseException) -> str:
    """The gRPC status code name of an error; ``INTERNAL`` for anything that is not ours."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return "INTERNAL"
