"""The critic's model folder, converted once from a package; its tokenizer also counts the reader's tokens."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from canopy_backend.errors import StackError
from canopy_local import critic_conversion
from canopy_local.environments import Environment
from canopy_local.locking import Report, locked
from canopy_local.logs import tail
from canopy_local.settings import StackSettings

_FILES: Final = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json")


def ensure(settings: StackSettings, environment: Environment, report: Report) -> Path:
    """The model folder, converted when it is not there.

    Raises:
        StackError: The conversion failed.
    """
    folder = settings.critic_model
    with locked(folder.parent, report):
        if not all((folder / name).is_file() for name in _FILES):
            _convert(settings, environment, folder, report)
    return folder


def _convert(settings: StackSettings, environment: Environment, folder: Path, report: Report) -> None:
    report("converting the critic's model (about half a minute, once)")
    half = folder.with_name(folder.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    settings.logs.mkdir(parents=True, exist_ok=True)
    log = settings.logs / "convert-critic.log"
    command = [str(environment.python), critic_conversion.__file__, str(half)]
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
