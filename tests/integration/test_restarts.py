"""Clients that were open before a server restarted go on afterwards. Critic and Milvus have such tests of their own."""

from __future__ import annotations

from typing import Any

import pytest
from patience import PATIENCE_S

from canopy_backend.errors import ServerUnavailable
from canopy_client import AsyncCanopyClient, CanopyClient

pytestmark = pytest.mark.server

ITEM = {"id": "lid", "modality": "text", "title": "Kiln", "text": "The lid is heavy. Fire it at noon. Let it cool."}
QUERY = "When is the kiln fired?"


async def test_clients_survive_a_restart_of_the_evidence_server(stack: Any, evidence_url: str) -> None:
    with CanopyClient(evidence_url, deadline_s=30) as client:
        async with AsyncCanopyClient(evidence_url, deadline_s=30) as other:
            before = client.compress(QUERY, [ITEM], deadline_s=PATIENCE_S)
            assert await other.compress(QUERY, [ITEM]) == before
            stack.down("evidence")
            # Not DeadlineExceeded: it is told while there is time left.
            with pytest.raises(ServerUnavailable):
                client.compress(QUERY, [ITEM])
            stack.need("evidence")
            assert client.compress(QUERY, [ITEM], deadline_s=PATIENCE_S) == before
            assert await other.compress(QUERY, [ITEM], deadline_s=PATIENCE_S) == before
