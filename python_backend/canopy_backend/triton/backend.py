"""The server's own module, and the checks of the environment that a model starts in."""

from __future__ import annotations

import importlib
import locale
from pathlib import Path
from types import ModuleType
from typing import Final

import numpy as np

from canopy_backend.errors import ExportError

_UTILS: Final = "triton_python_backend_utils"
#: A function of the server's module, present as long as the module reads strings by itself, with numpy 1's layout.
_OLD_READER: Final = "deserialize_bytes_tensor"


def pb_utils() -> ModuleType:
    """The module that the server gives to its Python models."""
    return importlib.import_module(_UTILS)


def prepare_process() -> None:
    """Make the process fit to serve; the server starts it in the C locale.

    Raises:
        ExportError: This numpy would misread every string that the server hands over.
    """
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    check_numpy(np.__version__, Path(pb_utils().__file__ or "").read_text(encoding="utf-8"))


def check_numpy(version: str, utils_source: str) -> None:
    """Refuse numpy 2 under a server whose stub was built for numpy 1.

    Args:
        version: numpy's version.
        utils_source: Source of the server's ``triton_python_backend_utils``.

    Raises:
        ExportError: The two do not go together; the message says what to install.
    """
    if int(version.split(".", 1)[0]) >= 2 and f"def {_OLD_READER}" in utils_source:
        raise ExportError(
            f"numpy {version}: this Triton release was built for numpy 1 and misreads strings with numpy 2; "
            "install 'numpy<2' (1.26.4) into the environment that starts the server"
        )
