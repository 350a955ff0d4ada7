"""Where the checks run: against GPUSCALE_CONFORMANCE_SERVER, or else against the embedded API, started here.

Every check holds on a real API server of Kubernetes 1.36 with its controllers, so it uses a namespace and an API group
of its own and waits for what a server does in its own time.
"""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance_api.client import PATIENCE_SECONDS, Api, Server, eventually
from tests.conformance_api.objects import CRDS, widget_definition

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = os.environ.get("GPUSCALE_CONFORMANCE_SERVER")
    if url:
        token, ca = os.environ.get("GPUSCALE_CONFORMANCE_TOKEN"), os.environ.get("GPUSCALE_CONFORMANCE_CA")
        yield Server(url.rstrip("/"), token, ca)
        return
    address = tmp_path_factory.mktemp("embedded") / "address"
    command = [sys.executable, "-m", "controller.sandbox.api", "--token", "conformance", "--address-file", str(address)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while not address.exists():
                assert process.poll() is None, "the embedded API ended"
                assert time.monotonic() < end, "the embedded API did not start"
                time.sleep(0.02)
            yield Server(address.read_text(), "conformance", None)
        finally:
            process.terminate()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    async with server.connect() as session:
        yield Api(server, session)


@pytest.fixture
async def space(api: Api) -> AsyncIterator[str]:
    """A namespace of the check's own."""
    created = await api.post("/api/v1/namespaces", {"metadata": {"generateName": "conformance-"}})
    name = created.object()["metadata"]["name"]
    # pods need it, and the controller that makes it may be late or absent
    account = await api.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    assert account.status in {201, 409}, account.body
    yield name
    await api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def controllers(server: Server) -> bool:
    """Whether the cluster's controllers run: then a new namespace gets its service account."""

    async def look() -> bool:
        async with server.connect() as session:
            api = Api(server, session)
            created = await api.post("/api/v1/namespaces", {"metadata": {"generateName": "conformance-"}})
            name = created.object()["metadata"]["name"]
            try:
                for _ in range(50):
                    if (await api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")).status == 200:
                        return True
                    await asyncio.sleep(0.1)
                return False
            finally:
                await api.delete(f"/api/v1/namespaces/{name}")

    return asyncio.run(look())


@pytest.fixture
def with_controllers(*, controllers: bool) -> None:
    if not controllers:
        pytest.skip("no controllers run in this cluster: nobody collects garbage, counts budgets or empties namespaces")


@pytest.fixture(scope="session")
def group(server: Server) -> Iterator[str]:
    """An API group of this run with the kind Widget: namespaced, with status and scale."""
    name = f"r{secrets.token_hex(4)}.conformance.gpuscale.dev"
    definition = widget_definition(name)

    async def install() -> None:
        async with server.connect() as session:
            api = Api(server, session)
            (await api.post(CRDS, definition)).object()
            await established(api, definition)

    async def remove() -> None:
        async with server.connect() as session:
            await Api(server, session).delete(f"{CRDS}/{definition['metadata']['name']}")

    asyncio.run(install())
    yield name
    asyncio.run(remove())


async def established(api: Api, definition: dict[str, Any]) -> None:
    """Wait until a definition is served."""
    name, spec = definition["metadata"]["name"], definition["spec"]

    def accepted(answer: Any) -> bool:
        conditions = answer.body.get("status", {}).get("conditions") or []
        return {"Established", "NamesAccepted"} <= {c["type"] for c in conditions if c["status"] == "True"}

    await api.until(f"{CRDS}/{name}", accepted, "the definition established")
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    await eventually(lambda: api.get(path), lambda answer: answer.status == 200, f"{path} served")


@pytest.fixture
def widgets(group: str, space: str) -> str:
    """The path of the widgets of this check."""
    return f"/apis/{group}/v1/namespaces/{space}/widgets"


@pytest.fixture
def config_maps(space: str) -> str:
    return f"/api/v1/namespaces/{space}/configmaps"


@pytest.fixture
def deployments(space: str) -> str:
    return f"/apis/apps/v1/namespaces/{space}/deployments"


@pytest.fixture
def pods(space: str) -> str:
    return f"/api/v1/namespaces/{space}/pods"
