"""How Triton from the pip wheel is started: its parts put together, its flags, its environment."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from canopy_backend.errors import StackError
from canopy_backend.manifest import MANIFEST_FILE, EncoderManifest
from canopy_backend.triton.artefacts import NODE_ENCODER, VISION_ENCODER
from canopy_backend.triton.critic import MODEL_VARIABLE, TRACING_VARIABLE
from canopy_local.environments import CRITIC, Environment, libpython
from canopy_local.procfs import TOKEN_VARIABLE
from canopy_local.settings import StackSettings

#: The servers, and the models that each is asked to load; their composing models follow by themselves.
EVIDENCE: Final = "evidence"
MODELS: Final = {EVIDENCE: ("compress", "compress_indexed", "index", "embed_query"), CRITIC: ("critic",)}
PROFILE: Final = "embedded"
PURPOSES: Final = ("http", "grpc", "metrics")
_EXIT_TIMEOUT_S: Final = 10
#: Seconds that a stub may take to load its model; the critic imports torch and vLLM in them.
_STUB_TIMEOUT_S: Final = {EVIDENCE: 60, CRITIC: 240}


@dataclass(frozen=True, slots=True)
class Launch:
    """All that is needed to start one server."""

    name: str
    command: list[str]
    environment: dict[str, str]


def ports(settings: StackSettings, name: str) -> dict[str, int]:
    """A server's ports by purpose."""
    return {purpose: getattr(settings, port_setting(name, purpose)) for purpose in PURPOSES}


def port_setting(name: str, purpose: str) -> str:
    """Name of the setting that holds a port."""
    return f"critic_{purpose}_port" if name == CRITIC else f"{purpose}_port"


def shm_prefix(name: str, token: str) -> str:
    """Start of the names of a server's shared-memory regions: its own at each start."""
    return f"canopy_{name}_{token[:12]}_"


def launch(
    settings: StackSettings, name: str, token: str, *, server: Environment, critic: Environment | None
) -> Launch:
    """How to start a server.

    Args:
        settings: Where and how.
        name: ``evidence`` or ``critic``.
        token: Marks the processes of this start.
        server: The environment that Triton itself comes from.
        critic: The critic's environment; needed for the critic alone.

    Raises:
        StackError: The repository lacks a model.
    """
    for model in models(settings, name):
        if not (settings.model_repository / model / "config.pbtxt").is_file():
            raise StackError(f"{settings.model_repository} has no model {model!r}; set CANOPY_MODEL_REPOSITORY")
    packages = critic if name == CRITIC and critic is not None else server
    wheel = server.packages / "pytriton" / "tritonserver"
    libraries = f"{server.packages / 'nvidia_pytriton.libs'}:{libpython()}"
    variables = packages.activated() | {
        "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
        TOKEN_VARIABLE: token,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # vLLM renames its processes, which would overwrite the token in what the kernel shows of their environment.
        "SPT_NOENV": "1",
    }
    if name == CRITIC:
        variables[TRACING_VARIABLE] = settings.tracing_url
        variables[MODEL_VARIABLE] = str(settings.critic_model)
        variables["OMP_NUM_THREADS"] = str(settings.critic_threads or len(os.sched_getaffinity(0)))
    elif settings.threads:
        variables["OMP_NUM_THREADS"] = str(settings.threads)
    command = [str(wheel / "bin" / "tritonserver"), *_flags(settings, name, token, wheel, backends(server))]
    return Launch(name, command, variables)


def models(settings: StackSettings, name: str) -> tuple[str, ...]:
    """The models that a server is asked to load: no ensemble has the vision tower, which is called by their steps."""
    manifest = settings.model_repository / NODE_ENCODER / MANIFEST_FILE
    sees = name == EVIDENCE and manifest.is_file() and EncoderManifest.load(manifest).pixels
    return (*MODELS[name], VISION_ENCODER) if sees else MODELS[name]


def backends(server: Environment) -> Path:
    """Folder of backends with the stub of this Python, put together from the wheel's parts when it is not there."""
    wheel = server.packages / "pytriton" / "tritonserver"
    folder = server.folder / "triton-backends"
    stub = "triton_python_backend_stub"
    if (folder / "python" / stub).is_file():
        return folder
    half = folder.with_suffix(".part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(wheel / "backends" / "python", half / "python")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copy2(wheel / "python_backend_stubs" / version / stub, half / "python" / stub)
    half.replace(folder)
    return folder


def _flags(settings: StackSettings, name: str, token: str, wheel: Path, backend_folder: Path) -> list[str]:
    chosen = ports(settings, name)
    flags = {
        "model-repository": settings.model_repository,
        "model-control-mode": "explicit",
        "model-config-name": PROFILE,
        "strict-readiness": "true",
        "exit-on-error": "true",
        "exit-timeout-secs": _EXIT_TIMEOUT_S,
        "http-address": settings.host,
        "grpc-address": settings.host,
        "metrics-address": settings.host,
        "http-port": chosen["http"],
        "grpc-port": chosen["grpc"],
        "metrics-port": chosen["metrics"],
        # Quantiles of each model's times, of those in C++ too, which the models' own metrics cannot see.
        "metrics-config": "summary_latencies=true",
        "reuse-http-port": "false",
        "reuse-grpc-port": "false",
        "backend-directory": backend_folder,
        "cache-directory": wheel / "caches",
        "cache-config": f"local,size={settings.cache_bytes}",
        "pinned-memory-pool-byte-size": 0,
    }
    python = {
        "shm-region-prefix-name": shm_prefix(name, token),
        "stub-timeout-seconds": _STUB_TIMEOUT_S[name],
    }
    if name == CRITIC:
        del flags["cache-directory"], flags["cache-config"]
    return (
        ["--disable-auto-complete-config"]
        + [f"--{flag}={value}" for flag, value in flags.items()]
        + [f"--load-model={model}" for model in models(settings, name)]
        + _tracing(settings, name)
        + [f"--backend-config=python,{key}={value}" for key, value in python.items()]
    )


def one_in(share: float) -> int:
    """A share of requests as Triton takes it: one in so many; 0 for those alone that bring a trace of their own."""
    return max(1, round(1 / share)) if share else 0


def _tracing(settings: StackSettings, name: str) -> list[str]:
    """Spans of each request and of its steps. A request with a ``traceparent`` is always recorded."""
    if not settings.tracing_url:
        return []
    options = {
        "mode": "opentelemetry",
        "opentelemetry,url": settings.tracing_url,
        "opentelemetry,resource": f"service.name=canopy-{name}",
        "rate": one_in(settings.tracing_rate),
        "level": "TIMESTAMPS",
    }
    flags = [f"--trace-config={option}={value}" for option, value in options.items()]
    if name == CRITIC:
        # The model hands the trace on to vLLM; Triton gives headers to models as parameters, where it is told to.
        flags.append("--grpc-header-forward-pattern=traceparent")
    return flags
