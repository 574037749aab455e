"""The critic's model folder: converted again when its adapter changes, and only then."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from canopy_backend.errors import StackError
from canopy_local import critic_model
from canopy_local.environments import Environment
from canopy_local.settings import StackSettings

FILES = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json")


def write_adapter(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each conversion, which itself only writes empty files."""
    seen: list[list[str]] = []

    def convert(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        target = Path(command[2])
        target.mkdir(parents=True)
        for name in FILES:
            (target / name).write_text("")
        seen.append(command[3:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", convert)
    return seen


def test_the_model_is_converted_when_its_adapter_changes(tmp_path: Path, calls: list[list[str]]) -> None:
    adapter = write_adapter(tmp_path / "adapter", b"one")
    environment = Environment(tmp_path / "venv")

    def ensure(chosen: Path | None) -> bool:
        settings = StackSettings(home=tmp_path / "home", critic_adapter=chosen)
        return critic_model.ensure(settings, environment, lambda _: None)

    assert ensure(adapter)
    assert not ensure(adapter)
    write_adapter(adapter, b"two")
    assert ensure(adapter)
    assert ensure(Path("none"))
    assert not ensure(Path("none"))
    assert calls == [[str(adapter)], [str(adapter)], []]


def test_a_model_from_before_there_were_adapters_holds_none(tmp_path: Path, calls: list[list[str]]) -> None:
    settings = StackSettings(home=tmp_path, critic_adapter=Path("none"))
    settings.critic_model.mkdir(parents=True)
    assert critic_model.made_of(settings.critic_model) == ""
    for name in FILES:
        (settings.critic_model / name).write_text("")
    assert not critic_model.ensure(settings, Environment(tmp_path / "venv"), lambda _: None)
    assert calls == []


def test_a_folder_without_an_adapter_is_named(tmp_path: Path, calls: list[list[str]]) -> None:
    settings = StackSettings(home=tmp_path / "home", critic_adapter=tmp_path / "nowhere")
    with pytest.raises(StackError, match=r"nowhere.*adapter_config\.json"):
        critic_model.ensure(settings, Environment(tmp_path / "venv"), lambda _: None)
    assert calls == []


def test_the_adapter_is_a_setting(tmp_path: Path) -> None:
    assert StackSettings.from_environment({}).critic_adapter is None
    assert StackSettings.from_environment({"CANOPY_CRITIC_ADAPTER": "none"}).critic_adapter == Path("none")
    given = StackSettings.from_environment({"CANOPY_CRITIC_ADAPTER": str(tmp_path)})
    assert critic_model.adapter_of(given) == tmp_path
