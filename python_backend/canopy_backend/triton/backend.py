"""The server's own module, and the checks of the environment that a model starts in."""

from __future__ import annotations

import importlib
import locale
import os
from types import ModuleType
from typing import Final

import numpy as np

from canopy_backend.errors import ExportError

_UTILS: Final = "triton_python_backend_utils"
#: Set in the server's images to the release, for instance ``25.12``; the package on PyPI, 24.10, does not set it.
_RELEASE: Final = "NVIDIA_TRITON_SERVER_VERSION"
#: The oldest release that this project runs with numpy 2.
_NUMPY_2_RELEASE: Final = (25, 12)


def pb_utils() -> ModuleType:
    """The module that the server gives to its Python models."""
    return importlib.import_module(_UTILS)


def prepare_process() -> None:
    """Make the process fit to serve; the server starts it in the C locale.

    Raises:
        ExportError: This numpy would misread every string that the server hands over.
    """
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    check_numpy(np.__version__, os.environ.get(_RELEASE, ""))


def check_numpy(numpy_version: str, release: str) -> None:
    """Refuse numpy 2 under a server that was built for numpy 1: each string would kill the model's process.

    Args:
        numpy_version: numpy's version.
        release: The server's release, ``25.12`` or ``25.12.1``; empty where it is not known, which is taken as old.

    Raises:
        ExportError: The two do not go together; the message says what to install.
    """
    numbers = tuple(int(part) for part in release.split(".") if part.isdecimal())
    if int(numpy_version.split(".", 1)[0]) >= 2 and numbers < _NUMPY_2_RELEASE:
        raise ExportError(
            f"numpy {numpy_version} under Triton {release or '24.10 (or unknown)'}: releases before 25.12 misread "
            f"strings with numpy 2; install 'numpy<2' into the environment that starts the server, or set {_RELEASE} "
            "where the release is newer"
        )
