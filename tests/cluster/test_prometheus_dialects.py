"""A real Prometheus scrapes every dialect's page, as text and as OpenMetrics, and takes each series of it."""

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.dialects import DIALECTS
from exporter.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE, finish
from tests.exporter.foreign import rich, spoken
from tests.realparts import build
from tests.realparts.processes import Process

PAGES = {f"/{name}/{form}": finish(spoken(rich(), name)) for name in DIALECTS for form in ("text", "openmetrics")}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        openmetrics = self.path.endswith("/openmetrics")
        body = PAGES[self.path].form(openmetrics=openmetrics, gzip=False)
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_page_is_scraped_without_a_fault_and_whole(served: str, tmp_path: Path) -> None:
    try:
        program = build.programs("prometheus") / "prometheus"
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")
    jobs = [
        {"job_name": path, "metrics_path": path, "scrape_interval": "1s", "static_configs": [{"targets": [served]}]}
        for path in PAGES
    ]
    config = tmp_path / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"scrape_configs": jobs}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    process = Process([*command, f"--web.listen-address={address}"], tmp_path / "prometheus.log")
    try:
        process.wait_until(lambda: len(_asked(address, "scrape_samples_scraped")) == len(PAGES), 60)
        up, scraped = _asked(address, "up"), _asked(address, "scrape_samples_scraped")
    finally:
        process.end()
    assert up == dict.fromkeys(PAGES, 1.0), process.tail()
    printed = {path: sum(not line.startswith(b"#") for line in body.plain.splitlines()) for path, body in PAGES.items()}
    assert scraped == printed


def _asked(address: str, query: str) -> dict[str, float]:
    """Job -> value of an instant query; nothing while it cannot be asked."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?query={query}", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return {}
    return {series["metric"]["job"]: float(series["value"][1]) for series in found}
