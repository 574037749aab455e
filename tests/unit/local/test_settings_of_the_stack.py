from __future__ import annotations

from pathlib import Path

import pytest

from canopy_backend.errors import PortBusy, StackError, code_of
from canopy_local.settings import PROJECT, StackSettings, variable_of


def test_defaults_are_the_documented_ports() -> None:
    settings = StackSettings.from_environment({})
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (8000, 8001, 8002)
    assert (settings.critic_http_port, settings.critic_grpc_port, settings.critic_metrics_port) == (9000, 9001, 9002)
    assert settings.host == "127.0.0.1"
    assert settings.home == PROJECT / ".canopy"
    assert settings.model_repository == PROJECT / "model_repository"


def test_environment_then_arguments(tmp_path: Path) -> None:
    environment = {"CANOPY_GRPC_PORT": "18001", "CANOPY_HOME": str(tmp_path), "CANOPY_START_TIMEOUT_S": "2.5"}
    settings = StackSettings.from_environment(environment, grpc_port=1234, http_port=None)
    assert settings.grpc_port == 1234
    assert settings.http_port == 8000
    assert settings.start_timeout_s == 2.5
    assert settings.home == tmp_path.resolve()
    assert settings.milvus_uri == str(tmp_path.resolve() / "milvus" / "canopy.db")


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert StackSettings.from_environment({"CANOPY_HOME": "here"}).home == (tmp_path / "here").resolve()


def test_the_encoder_s_variables_are_those_of_the_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert (StackSettings.from_environment({}).adapter, StackSettings.from_environment({}).node_encoding) == (
        None,
        None,
    )
    settings = StackSettings.from_environment({"CANOPY_ADAPTER": "a", "CANOPY_NODE_ENCODING": "contextual"})
    assert (settings.adapter, settings.node_encoding) == ((tmp_path / "a").resolve(), "contextual")
    with pytest.raises(StackError, match="CANOPY_NODE_ENCODING"):
        StackSettings.from_environment({"CANOPY_NODE_ENCODING": "both"})


@pytest.mark.parametrize("value", ["many", "80.5", ""])
def test_a_bad_value_names_its_variable(value: str) -> None:
    environment = {"CANOPY_CRITIC_GRPC_PORT": value}
    if not value:
        assert StackSettings.from_environment(environment).critic_grpc_port == 9001
        return
    with pytest.raises(StackError, match="CANOPY_CRITIC_GRPC_PORT"):
        StackSettings.from_environment(environment)


def test_errors_say_what_to_change() -> None:
    error = PortBusy(8001, host="127.0.0.1", purpose="evidence grpc", variable=variable_of("grpc_port"))
    assert "8001" in str(error)
    assert "CANOPY_GRPC_PORT" in str(error)
    assert code_of(error) == "FAILED_PRECONDITION"


def test_no_adapter_is_a_word_and_any_other_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StackSettings.from_environment({"CANOPY_ADAPTER": "none"}).adapter == Path("none")
    assert StackSettings.from_environment({"CANOPY_ADAPTER": "own"}).adapter == tmp_path / "own"
    assert StackSettings.from_environment({"CANOPY_MODEL": "m"}).model == tmp_path / "m"
    assert StackSettings.from_environment({}).adapter is None
