"""A scripted API server and a client of it for each test."""

from collections.abc import AsyncIterator

import pytest

from controller.cluster import Cluster
from tests.k8s.scripted import ScriptedApi, scripted_api


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api() as server:
        yield server


@pytest.fixture
async def cluster(api: ScriptedApi) -> AsyncIterator[Cluster]:
    client = await Cluster.connect(api.url, token="a-secret-token")  # noqa: S106 - of the scripted server
    yield client
    await client.close()
