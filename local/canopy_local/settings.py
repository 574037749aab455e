"""Settings of the local stack: one definition for the Python name, the environment variable and the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from canopy_backend.errors import StackError
from canopy_backend.manifest import NodeEncoding, Precision
from canopy_export.example import NO_ADAPTER

#: The checkout that this package is installed from; requirement files and the model repository lie in it.
PROJECT: Final = Path(__file__).resolve().parents[2]
PREFIX: Final = "CANOPY_"


class StackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the stack lives and how it runs. Each attribute is ``CANOPY_`` and its name in capitals in the environment.

    Attributes:
        home: Environments, models, logs and state.
        model_repository: What Triton loads.
        model: sentence-transformers folder of the encoders; by default the example.
        adapter: LoRA adapter folder for the node encoder, ``none`` for the base model; by default the example's own
            with the example, none with another model.
        node_encoding: ``separate`` or ``contextual``; by default what the adapter was trained for, else separate.
        critic_adapter: LoRA adapter folder that is merged into the critic's model, ``none`` for the model as it comes;
            by default the project's own.
        precision: ``fp32`` or ``bf16`` for the node encoder; by default ``bf16`` with the example's own adapters and
            with ``contextual``, else ``fp32``. Of a model that sees pixels, for both encoders and the vision tower.
        host: Address that the servers listen on. Anything but loopback opens them to the network, without TLS.
        http_port, grpc_port, metrics_port: Ports of the evidence server.
        critic_http_port, critic_grpc_port, critic_metrics_port: Ports of the critic server.
        threads: Threads of an encoder call; 0 means one a core.
        critic_threads: Threads of the critic; 0 means one a core.
        start_timeout_s: Seconds that a server may take until its canary passes.
        stop_timeout_s: Seconds that a server may take to stop before it is killed.
        cache_bytes: Size of the evidence server's response cache.
        tracing_url: Collector that the servers send their spans to, OTLP over HTTP with its path; empty for none.
        tracing_rate: Share of the requests that are traced, 0 to 1, of those that bring no trace of their own.
    """

    home: Path = PROJECT / ".canopy"
    model_repository: Path = PROJECT / "model_repository"
    model: Path | None = None
    adapter: Path | None = None
    critic_adapter: Path | None = None
    node_encoding: NodeEncoding | None = None
    precision: Precision | None = None
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    critic_http_port: int = 9000
    critic_grpc_port: int = 9001
    critic_metrics_port: int = 9002
    threads: int = 0
    critic_threads: int = 0
    start_timeout_s: float = 300.0
    stop_timeout_s: float = 20.0
    cache_bytes: int = 67_108_864
    tracing_url: str = ""
    tracing_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **given: Any) -> StackSettings:
        """Defaults, then the environment, then what is given and not ``None``.

        Raises:
            StackError: A variable has a value of the wrong type; names it.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            variable = variable_of(field.name)
            if environment.get(variable):
                values[field.name] = _read(environment[variable], field.type, variable)
        values |= {name: value for name, value in given.items() if value is not None}
        for name in ("home", "model_repository", "model", "adapter", "critic_adapter"):
            if values.get(name) not in (None, NO_ADAPTER, str(NO_ADAPTER)):
                values[name] = Path(values[name]).expanduser().resolve()
        return cls(**values)

    @property
    def venvs(self) -> Path:
        """Folder of the virtual environments."""
        return self.home / "venvs"

    @property
    def critic_model(self) -> Path:
        """Folder of the critic's model."""
        return self.home / "models" / "smollm2-135m-instruct"

    @property
    def milvus_uri(self) -> str:
        """The local collections: a file that Milvus Lite opens inside the client."""
        return str(self.home / "milvus" / "canopy.db")

    @property
    def logs(self) -> Path:
        """Folder of log files."""
        return self.home / "logs"


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _read(text: str, kind: Any, variable: str) -> Any:
    if kind in (Path, Path | None):
        return Path(text)
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise StackError(f"{variable}={text!r}: {error}") from None
