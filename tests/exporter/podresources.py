"""A kubelet's pod-resources API: a real gRPC server on a Unix socket, and the bytes of its answers."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from exporter.kubelet import LIST_METHOD


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def part(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def devices(resource: str, *ids: str, noise: bytes = b"") -> bytes:
    return part(2, part(1, resource) + b"".join(part(2, one) for one in ids) + noise)


def container(name: str, *held: bytes) -> bytes:
    return part(3, part(1, name) + b"".join(held))


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    return part(1, part(1, name) + part(2, namespace) + b"".join(containers))


def claim(*, driver: str = "gpu.nvidia.com", device: str = "", cdi: tuple[str, ...] = (), share: str = "") -> bytes:
    names = b"".join(part(1, part(1, name)) for name in cdi)
    told = (
        part(2, driver) + part(3, "node-1") + (part(4, device) if device else b"") + (part(5, share) if share else b"")
    )
    return part(5, part(2, "claim-name") + part(3, "ml") + part(4, names + told))


@contextmanager
def serving(
    path: Path, answer: Callable[[bytes, grpc.ServicerContext], bytes], method: str = LIST_METHOD
) -> Iterator[None]:
    service, _, name = method.lstrip("/").partition("/")
    handler = grpc.method_handlers_generic_handler(service, {name: grpc.unary_unary_rpc_method_handler(answer)})
    server = grpc.server(
        ThreadPoolExecutor(2), handlers=(handler,), options=[("grpc.max_send_message_length", 128 * 2**20)]
    )
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
