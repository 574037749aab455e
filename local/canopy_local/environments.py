"""The servers' virtual environments: built once from pinned requirement files, again when those change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from canopy_backend.errors import StackError
from canopy_local.locking import Report, locked
from canopy_local.logs import tail
from canopy_local.settings import PROJECT, StackSettings

SERVER: Final = "server"
CRITIC: Final = "critic"
PYTHONS: Final = ((3, 11), (3, 12))
#: Counts up when the steps below change in a way that existing environments should be built again.
RECIPE: Final = "1"
_PACKAGES: Final = PROJECT / "python_backend"
_STAMP: Final = ".canopy-stamp"
_SIZES: Final = {SERVER: "0.4 GB, about half a minute", CRITIC: "3.5 GB, some minutes"}
#: Builds from the index that do not match vLLM's CPU build of torch; transformers imports them where they exist.
_UNWANTED: Final = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its ``site-packages``."""
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def path_file(self) -> Path:
        """File that makes the project's packages importable in it; names their folder."""
        return self.packages / "canopy_triton.pth"

    def activated(self) -> dict[str, str]:
        """Our environment variables as after activation: how Triton's stub finds the packages."""
        dropped = ("PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return kept | {"VIRTUAL_ENV": str(self.folder), "PATH": f"{self.folder / 'bin'}:{os.environ.get('PATH', '')}"}


def ensure(settings: StackSettings, name: str, report: Report) -> Environment:
    """The environment ``name``, built when it is missing, unfinished or out of date.

    The stamp is written last, so an interrupted build is done again.

    Raises:
        StackError: This Python cannot be used, the requirement files are missing, pip failed, or the environment is
            another checkout's.
    """
    check_python()
    environment = Environment(settings.venvs / name)
    wanted = fingerprint(name)
    with locked(settings.venvs, report):
        stamp = environment.folder / _STAMP
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
            _refuse_foreign(settings, environment)
            _build(settings, name, environment, report)
            stamp.write_text(wanted, encoding="utf-8")
    return environment


def _build(settings: StackSettings, name: str, environment: Environment, report: Report) -> None:
    log = settings.logs / f"install-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    report(f"building the {name} environment ({_SIZES[name]}); log: {log}")
    shutil.rmtree(environment.folder, ignore_errors=True)
    with log.open("wb"):
        pass
    _run([sys.executable, "-m", "venv", str(environment.folder)], log)
    for step in _steps(name):
        report(f"{name} environment: {_told(step)}")
        _run([str(environment.python), "-m", "pip", *step], log)
    # Only the method's package: the servers must not see the client's.
    environment.path_file.write_text(f"{_PACKAGES}\n", encoding="utf-8")


def _refuse_foreign(settings: StackSettings, environment: Environment) -> None:
    """Leave alone what another checkout built for itself, whose servers may be running from it.

    Raises:
        StackError: The environment names a checkout that is not this one and is still there.
    """
    if not environment.path_file.is_file():
        return
    packages = Path(environment.path_file.read_text(encoding="utf-8").strip())
    if packages != _PACKAGES and packages.is_dir():
        raise StackError(
            f"{environment.folder} belongs to the checkout {packages.parent}; "
            f"set CANOPY_HOME to a folder of this one's own instead of {settings.home}"
        )


def fingerprint(name: str) -> str:
    """What an environment was built from: its requirement files, this Python, where the project lies.

    Raises:
        StackError: The requirement files are missing.
    """
    digest = hashlib.sha256(f"{RECIPE} {sys.version} {sys.base_prefix} {PROJECT}".encode())
    for path in _files(name):
        try:
            digest.update(path.read_bytes())
        except OSError:
            raise StackError(f"{path} is missing; the local stack runs from a checkout of the project") from None
    return digest.hexdigest()


def check_python() -> None:
    """Refuse an interpreter that the pinned wheels or Triton's stub cannot use.

    Raises:
        StackError: Its version is not supported, or it has no shared library.
    """
    if sys.version_info[:2] not in PYTHONS:
        have, good = ".".join(map(str, sys.version_info[:2])), ", ".join(f"{a}.{b}" for a, b in PYTHONS)
        raise StackError(f"Python {have} is not supported by the pinned servers; use one of {good}")
    libpython()


def libpython() -> Path:
    """Folder of this interpreter's shared library, which Triton's stub loads.

    Raises:
        StackError: There is none.
    """
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    variables = sysconfig.get_config_vars()
    folders = [Path(str(variables.get(key) or "")) for key in ("LIBDIR", "LIBPL")]
    folders += [folders[0] / str(variables.get("MULTIARCH") or ""), Path(sys.base_prefix) / "lib"]
    for folder in folders:
        if (folder / name).is_file():
            return folder
    version = name.removeprefix("libpython").removesuffix(".so.1.0")
    raise StackError(
        f"{name} not found beside {sys.base_prefix}: Triton's Python models need the shared library. On Debian and "
        f"Ubuntu install libpython{version}; with pyenv rebuild with PYTHON_CONFIGURE_OPTS=--enable-shared"
    )


def _files(name: str) -> tuple[Path, ...]:
    folder = PROJECT / "requirements"
    return folder / f"{name}.txt", folder / f"{name}-no-deps.txt", folder / "locks" / f"{name}.txt"


def _steps(name: str) -> list[list[str]]:
    """Arguments of pip, in order."""
    resolved, bare, _ = _files(name)
    steps = [["install", "--quiet", "--requirement", str(resolved)]]
    if name == CRITIC:
        steps.append(["uninstall", "--quiet", "--yes", *_UNWANTED])
    steps.append(["install", "--quiet", "--no-deps", "--requirement", str(bare)])
    return steps


def _told(step: Sequence[str]) -> str:
    words = (Path(word).name if word.startswith("/") else word for word in step if word != "--quiet")
    return f"pip {' '.join(words)}"


def _run(command: Sequence[str], log: Path) -> None:
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False)  # noqa: S603
    if done.returncode:
        raise StackError(f"{' '.join(command)} failed ({done.returncode}); {log} ends with:\n{tail(log)}")
