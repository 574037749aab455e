"""The machine, and the settings that a server runs with."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import psutil
from tritonclient.grpc import InferenceServerClient

_MODELS = ("hierarchy", "tokenizer", "query_encoder", "node_encoder", "refinement")
_PARAMETERS = ("threads", "chunk_tokens")


def machine() -> str:
    """Processor, cores, memory and Python, in words."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    model = found[1].strip() if found else platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def settings_of(url: str) -> dict[str, str]:
    """Instances, threads and queue of each model on the path of a call, from the server at ``url``."""
    found = {}
    with InferenceServerClient(url) as client:
        for name in _MODELS:
            config = client.get_model_config(name).config
            count = sum(group.count for group in config.instance_group)
            words = [f"{count} instance" + ("s" if count != 1 else "")]
            words += [f"{key} {config.parameters[key].string_value}" for key in _PARAMETERS if key in config.parameters]
            queue = config.dynamic_batching.default_queue_policy.max_queue_size
            if queue:
                words.append(f"queue {queue}")
            found[name] = ", ".join(words)
    return found
