"""The critic's model folder, converted from a package and this project's adapter, and again when that changes.

Its tokenizer also counts the reader's tokens.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from canopy_backend.errors import StackError
from canopy_export.example import NO_ADAPTER
from canopy_local import critic_conversion
from canopy_local.environments import Environment
from canopy_local.locking import Report, locked
from canopy_local.logs import tail
from canopy_local.settings import StackSettings

_FILES: Final = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json")


#: The adapter that comes with the project, merged unless another or none is asked for.
ADAPTER: Final = Path(__file__).parent / "adapters" / "critic"
_ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
#: Says what the folder was made of; written last, so that a folder without it is made again.
STAMP: Final = "canopy_adapter.txt"
_BASE: Final = "none"


def ensure(settings: StackSettings, environment: Environment, report: Report) -> bool:
    """Convert the model where it is not there, or was made with another adapter.

    Returns:
        Whether it was converted, so that a server which runs has to load it anew.

    Raises:
        StackError: The adapter's folder holds none, or the conversion failed.
    """
    folder, adapter = settings.critic_model, adapter_of(settings)
    wanted = fingerprint(adapter)
    with locked(folder.parent, report):
        if made_of(folder) == wanted:
            return False
        _convert(settings, environment, adapter, report)
        (folder / STAMP).write_text(wanted, encoding="utf-8")
    return True


def adapter_of(settings: StackSettings) -> Path | None:
    """The adapter that the settings ask for; ``None`` for the model as it is."""
    if settings.critic_adapter is None:
        return ADAPTER
    return None if settings.critic_adapter == NO_ADAPTER else settings.critic_adapter


def fingerprint(adapter: Path | None) -> str:
    """Names an adapter's content.

    Raises:
        StackError: A file of it is missing.
    """
    if adapter is None:
        return _BASE
    digest = hashlib.sha256()
    for name in _ADAPTER_FILES:
        try:
            content = (adapter / name).read_bytes()
        except OSError as error:
            raise StackError(f"the critic's adapter {adapter}: {error.strerror or error} ({name})") from None
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def made_of(folder: Path) -> str:
    """Fingerprint of the adapter that a model folder was made with; empty where the folder is not complete."""
    if not all((folder / name).is_file() for name in _FILES):
        return ""
    try:
        return (folder / STAMP).read_text(encoding="utf-8")
    except OSError:
        # Made before there were adapters.
        return _BASE


def _convert(settings: StackSettings, environment: Environment, adapter: Path | None, report: Report) -> None:
    folder = settings.critic_model
    report("converting the critic's model (about half a minute, once)")
    half = folder.with_name(folder.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    settings.logs.mkdir(parents=True, exist_ok=True)
    log = settings.logs / "convert-critic.log"
    command = [str(environment.python), critic_conversion.__file__, str(half), *([str(adapter)] if adapter else [])]
    variables = environment.activated() | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if not os.environ.get("OMP_NUM_THREADS"):
        variables["OMP_NUM_THREADS"] = str(settings.critic_threads or len(os.sched_getaffinity(0)))
    with log.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=output, env=variables, check=False)  # noqa: S603
    missing = [name for name in _FILES if not (half / name).is_file()]
    if done.returncode or missing:
        raise StackError(f"converting the critic's model failed; missing {missing}; {log} ends with:\n{tail(log)}")
    shutil.rmtree(folder, ignore_errors=True)
    half.replace(folder)
