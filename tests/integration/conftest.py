"""The real servers, started when the first test asks for one and stopped when the session ends.

Environments and models come from ``CANOPY_HOME`` (or ``.canopy``), so they are built once; state, logs and ports are
the session's own, so a stack that somebody runs on the default ports is left alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from canopy_local import stack as stack_module
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.stack import StackStatus


@dataclasses.dataclass
class Stack:
    """A stack of the session's own, started server by server."""

    settings: StackSettings

    def need(self, *servers: str) -> StackStatus:
        """Start servers that do not run; those that do are checked by their canary."""
        return stack_module.up(self.settings, servers=servers, tied=True)

    def status(self, *servers: str) -> StackStatus:
        return stack_module.status(self.settings, servers=servers or stack_module.SERVERS)

    def down(self, *servers: str) -> None:
        stack_module.down(self.settings, servers=servers or stack_module.SERVERS)

    @property
    def evidence_url(self) -> str:
        return f"127.0.0.1:{self.settings.grpc_port}"

    @property
    def critic_url(self) -> str:
        return f"127.0.0.1:{self.settings.critic_grpc_port}"


@pytest.fixture(scope="session")
def shared_settings() -> StackSettings:
    """Settings of the environment that the tests run in; its environments are built when missing."""
    return StackSettings.from_environment()


@pytest.fixture(scope="session")
def stack(shared_settings: StackSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The session's stack, nothing of it started yet."""
    folder = tmp_path_factory.mktemp("stack") / "home"
    one = Stack(isolated(shared_settings, folder))
    try:
        yield one
    finally:
        one.down()


@pytest.fixture(scope="session")
def evidence_url(stack: Stack) -> str:
    """gRPC address of the running evidence server."""
    stack.need("evidence")
    return stack.evidence_url


@pytest.fixture(scope="session")
def critic_url(stack: Stack) -> str:
    """gRPC address of the running critic server."""
    stack.need("critic")
    return stack.critic_url


@pytest.fixture(scope="session")
def stack_environment(evidence_url: str, critic_url: str) -> dict[str, str]:
    """What the `canopy` command needs in its environment to find this session's servers."""
    return {"CANOPY_URL": evidence_url, "CANOPY_CRITIC_URL": critic_url, "CANOPY_BUDGET_TOKENS": "600"}
