"""The toy encoder as a source of training."""

from __future__ import annotations

import pytest
from question_toys import write_model

from canopy_export.source import Source, read_source


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return read_source(write_model(tmp_path_factory.mktemp("model")), name="tiny")
