"""How a connection is opened: TLS, message sizes, keepalive. Shared by the sync and the async client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from canopy_backend.addresses import shown_address
from canopy_backend.errors import InvalidRequest

#: Triton's own largest message. The defaults of gRPC (4 MiB) would refuse a reply of ten long items.
MAX_MESSAGE_BYTES: Final = 2**31 - 1

#: ``(name, value)`` pairs. The pings stay under the server's default tolerance (two without data), so that a quiet
#: call is kept and the connection is not closed for pinging too often. Attempts are counted by RetryPolicy alone.
CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 2),
    ("grpc.enable_retries", 0),
    # A server that comes back is found within the pauses of RetryPolicy; gRPC's own wait grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Behind a headless service every replica gets its share; one address behaves as before.
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
)


_LOOPBACK: Final = ("localhost:", "127.", "[::1]:", "unix:")


def channel_options(url: str) -> tuple[tuple[str, Any], ...]:
    """Options of a channel to ``url``; a proxy of the environment is not asked for this machine's own addresses."""
    return (*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", 0)) if url.startswith(_LOOPBACK) else CHANNEL_OPTIONS


@dataclass(frozen=True, slots=True)
class Tls:
    """An encrypted connection; files in PEM.

    Attributes:
        root_certificates: Authorities to trust; the system's where not given.
        private_key: The client's own key, for servers that ask for one.
        certificate_chain: The certificate that belongs to it.
    """

    root_certificates: Path | None = None
    private_key: Path | None = None
    certificate_chain: Path | None = None

    def credentials(self) -> Any:
        """The same as gRPC takes it.

        Raises:
            InvalidRequest: A file cannot be read, or a key stands without its certificate.
        """
        if (self.private_key is None) != (self.certificate_chain is None):
            raise InvalidRequest("tls: private_key and certificate_chain go together")
        try:
            root, key, chain = (
                None if path is None else Path(path).read_bytes()
                for path in (self.root_certificates, self.private_key, self.certificate_chain)
            )
        except OSError as error:
            raise InvalidRequest(f"tls: {error}") from None
        return grpc.ssl_channel_credentials(root, key, chain)


def check_target(url: str) -> str:
    """The address ``host:port`` of a gRPC server.

    Raises:
        InvalidRequest: It is empty, carries a scheme of HTTP or a user name, which gRPC would take for a host's.
    """
    if not url or url.startswith(("http://", "https://")) or ("@" in url and not url.startswith("unix")):
        shown = shown_address(url) if "://" in url else url.rpartition("@")[2]
        raise InvalidRequest(f"url {shown!r}: expected host:port of the gRPC endpoint, for instance localhost:8001")
    return url
