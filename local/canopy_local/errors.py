"""What can go wrong while the stack is set up, started or stopped."""

from __future__ import annotations

from canopy_backend.errors import CanopyError


class StackError(CanopyError):
    """The local stack cannot be set up, started or stopped; the message says what to do."""


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
