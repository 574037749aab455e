from __future__ import annotations

import sys
from pathlib import Path

import pytest

from canopy_backend.errors import StackError
from canopy_local import environments, triton_server
from canopy_local.environments import Environment
from canopy_local.procfs import TOKEN_VARIABLE
from canopy_local.settings import PROJECT, StackSettings
from canopy_local.triton_server import Launch

TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def server(tmp_path: Path) -> Environment:
    """An environment with the wheel's files that a start needs."""
    environment = Environment(tmp_path / "venvs" / "server")
    wheel = environment.packages / "pytriton" / "tritonserver"
    (wheel / "backends" / "python").mkdir(parents=True)
    (wheel / "backends" / "python" / "libtriton_python.so").write_text("library")
    for version in ("3.10", "3.11", "3.12"):
        folder = wheel / "python_backend_stubs" / version
        folder.mkdir(parents=True)
        (folder / "triton_python_backend_stub").write_text(version)
    return environment


def launched(tmp_path: Path, server: Environment, name: str) -> Launch:
    settings = StackSettings(home=tmp_path, grpc_port=7001, critic_grpc_port=7101)
    return triton_server.launch(settings, name, TOKEN, server=server, critic=Environment(tmp_path / "venvs" / "critic"))


def test_evidence_server_loads_its_ensembles_on_loopback(tmp_path: Path, server: Environment) -> None:
    command = launched(tmp_path, server, "evidence").command
    loaded = [flag.partition("=")[2] for flag in command if flag.startswith("--load-model=")]
    assert loaded == ["compress", "compress_indexed", "index", "embed_query"]
    for protocol in ("http", "grpc", "metrics"):
        assert f"--{protocol}-address=127.0.0.1" in command
    for flag in ("--disable-auto-complete-config", "--strict-readiness=true", "--model-control-mode=explicit",
                 "--exit-on-error=true", "--model-config-name=embedded", "--grpc-port=7001"):  # fmt: skip
        assert flag in command
    assert any(flag.startswith("--cache-config=local,size=") for flag in command)


def test_each_start_has_shared_memory_of_its_own(tmp_path: Path, server: Environment) -> None:
    flags = [flag for flag in launched(tmp_path, server, "evidence").command if "shm-region-prefix-name" in flag]
    assert flags == [f"--backend-config=python,shm-region-prefix-name=canopy_evidence_{TOKEN[:12]}_"]


def test_critic_runs_in_its_own_environment(tmp_path: Path, server: Environment) -> None:
    launch = launched(tmp_path, server, "critic")
    assert launch.environment["VIRTUAL_ENV"] == str(tmp_path / "venvs" / "critic")
    assert launch.environment["PATH"].startswith(str(tmp_path / "venvs" / "critic" / "bin"))
    assert launch.environment["CANOPY_CRITIC_MODEL"] == str(tmp_path / "models" / "smollm2-135m-instruct")
    assert launch.environment["HF_HUB_OFFLINE"] == "1"
    assert launch.environment[TOKEN_VARIABLE] == TOKEN
    assert "--grpc-port=7101" in launch.command
    assert launch.command[0].startswith(str(server.folder))


def test_stub_is_this_pythons(tmp_path: Path, server: Environment) -> None:
    folder = triton_server.backends(server)
    assert (folder / "python" / "triton_python_backend_stub").read_text() == ".".join(map(str, sys.version_info[:2]))
    assert (folder / "python" / "libtriton_python.so").is_file()
    assert triton_server.backends(server) == folder


def test_missing_model_is_named(tmp_path: Path, server: Environment) -> None:
    settings = StackSettings(home=tmp_path, model_repository=tmp_path)
    with pytest.raises(StackError, match=r"'compress'.*CANOPY_MODEL_REPOSITORY"):
        triton_server.launch(settings, "evidence", TOKEN, server=server, critic=None)


def test_environment_is_built_again_when_a_requirement_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = environments.fingerprint("server")
    assert environments.fingerprint("server") == before
    assert environments.fingerprint("critic") != before
    files = tmp_path / "requirements" / "locks"
    files.mkdir(parents=True)
    for name in ("server.txt", "server-no-deps.txt", "locks/server.txt"):
        (tmp_path / "requirements" / name).write_text("numpy==1.26.4\n")
    monkeypatch.setattr(environments, "PROJECT", tmp_path)
    first = environments.fingerprint("server")
    (tmp_path / "requirements" / "server-no-deps.txt").write_text("numpy==1.26.3\n")
    assert environments.fingerprint("server") != first
    with pytest.raises(StackError, match=r"critic\.txt is missing"):
        environments.fingerprint("critic")


def test_an_environment_of_another_checkout_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[str] = []
    monkeypatch.setattr(environments, "_build", lambda settings, name, environment, report: built.append(name))
    settings = StackSettings(home=tmp_path / "home")
    environment = Environment(settings.venvs / "server")
    environment.packages.mkdir(parents=True)
    other = tmp_path / "other" / "python_backend"
    other.mkdir(parents=True)
    environment.path_file.write_text(f"{other}\n")
    with pytest.raises(StackError, match=r"belongs to the checkout .*other; set CANOPY_HOME"):
        environments.ensure(settings, "server", lambda line: None)
    assert environment.path_file.is_file()
    other.rmdir()  # the checkout was moved or removed
    environments.ensure(settings, "server", lambda line: None)
    environment.path_file.write_text(f"{PROJECT / 'python_backend'}\n")
    (environment.folder / ".canopy-stamp").write_text("of older requirements")
    environments.ensure(settings, "server", lambda line: None)
    environments.ensure(settings, "server", lambda line: None)
    assert built == ["server", "server"]


def test_unsupported_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.sys, "version_info", (3, 14, 0))
    with pytest.raises(StackError, match=r"3\.14 is not supported.*3\.11, 3\.12"):
        environments.check_python()


def test_missing_libpython_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments.sysconfig, "get_config_vars", lambda: {"LIBDIR": str(tmp_path)})
    monkeypatch.setattr(environments.sys, "base_prefix", str(tmp_path))
    with pytest.raises(StackError, match=r"install libpython3\.\d+"):
        environments.libpython()


def test_every_requirement_is_pinned() -> None:
    for path in (PROJECT / "requirements").rglob("*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            text = line.partition("#")[0].strip()
            assert not text or text.startswith(("-c ", "--hash=sha256:")) or "==" in text, f"{path}: {line}"
            assert "://" not in text


@pytest.mark.parametrize(("share", "number"), [(0.01, 100), (1.0, 1), (0.3, 3), (0.0, 0), (0.75, 1)])
def test_a_share_is_told_as_one_in_so_many(share: float, number: int) -> None:
    assert triton_server.one_in(share) == number


@pytest.mark.parametrize("name", ["evidence", "critic"])
def test_traces_are_sent_where_a_collector_is_named(tmp_path: Path, server: Environment, name: str) -> None:
    settings = StackSettings(home=tmp_path, tracing_url="http://127.0.0.1:4318/v1/traces")
    given = triton_server.launch(
        settings, name, TOKEN, server=server, critic=Environment(tmp_path / "venvs" / "critic")
    )
    flags = [flag for flag in given.command if flag.startswith("--trace-config=")]
    assert "--trace-config=mode=opentelemetry" in flags
    assert "--trace-config=opentelemetry,url=http://127.0.0.1:4318/v1/traces" in flags
    assert f"--trace-config=opentelemetry,resource=service.name=canopy-{name}" in flags
    assert "--trace-config=rate=100" in flags
    assert ("--grpc-header-forward-pattern=traceparent" in given.command) == (name == "critic")
    assert not [flag for flag in launched(tmp_path, server, name).command if flag.startswith("--trace")]
