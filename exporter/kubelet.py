"""Which container holds which GPU, asked of the kubelet over its pod-resources socket.

Why it exists: the kubelet is the only one that knows. Its answer is decoded here from the wire, so that neither
generated code nor the protobuf library is needed; grpcio is imported only once the socket is there.
"""

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exporter.device_ids import cdi_device, cdi_driver
from exporter.readings import Allocation, SourceState

LIST_METHOD = "/v1.PodResourcesLister/List"
MAX_MESSAGE_BYTES = 64 * 2**20
KEPT_POLLS = 3
REST_SECONDS = 5.0
"""For so long, less the slack, the kubelet is left alone while nothing on the node says that its answer changed."""
_SLACK_SECONDS = 0.5
"""By how much a poll may come before its time."""
OFF = SourceState(up=False, reason="off", message="container series are off: no kubelet socket is set")
_UP = SourceState(up=True)

_CURES = {
    "no_socket": "mount the directory /var/lib/kubelet/pod-resources of the host into the pod at the same path",
    "permission_denied": "the socket belongs to root: run the exporter as user 0, or in the socket's group",
    "no_grpc": "install it with the extra: pip install 'gpuscale[kubelet]'",
    "timeout": "the kubelet accepts but does not answer: look at its load and its log",
    "unavailable": "the socket is there but nobody answers on it: is the kubelet running?",
    "too_large": f"the answer is larger than {MAX_MESSAGE_BYTES >> 20} MiB",
    "unimplemented": "the kubelet does not speak pod-resources v1: Kubernetes 1.20 or newer is needed",
    "bad_answer": "the answer is not a pod-resources v1 list: is this the kubelet's socket?",
    "failed": "look at the kubelet's log",
}
_STATUS_REASONS = {
    "DEADLINE_EXCEEDED": "timeout",
    "UNAVAILABLE": "unavailable",
    "PERMISSION_DENIED": "permission_denied",
    "RESOURCE_EXHAUSTED": "too_large",
    "UNIMPLEMENTED": "unimplemented",
}


class _FailedError(Exception):
    """No list was had; ``state`` says why."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.state = SourceState(up=False, reason=reason, message=f"{detail}; {_CURES[reason]}")


class KubeletAllocations:
    """Allocations of this node. socket_path "" = off. deadline_seconds bounds one question.

    signs: what changes whenever containers of the node do; None = it can't be told, and the kubelet is asked each time.
    """

    def __init__(
        self, socket_path: str, deadline_seconds: float, signs: Callable[[], object | None] = lambda: None
    ) -> None:
        self._path = socket_path
        self._deadline = deadline_seconds
        self._signs = signs
        self._asked_with: object | None = None
        self._rests_until = 0.0
        # gRPC's own loop integration cannot be stopped in bounded time; one thread with a deadline can
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kubelet")
        self._channel: Any = None
        self._question: Any = None
        self._read: tuple[bytes, tuple[Allocation, ...]] = (b"", ())
        """Digest of the last answer that could be read, and what it says: from poll to poll it is mostly the same."""
        self._last_good: tuple[Allocation, ...] | None = None
        self._failures = 0

    async def allocations(self) -> tuple[tuple[Allocation, ...] | None, SourceState]:
        """Return what every container holds; while the kubelet fails the last answer, for 3 polls at most."""
        if not self._path:
            return None, OFF
        signs = self._signs()
        if signs is not None and signs == self._asked_with and time.monotonic() < self._rests_until:
            return self._last_good, _UP
        self._asked_with, self._rests_until = signs, 0.0
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._list)
        except _FailedError as failed:
            self._failures += 1
            if self._failures > KEPT_POLLS:
                self._last_good = None
            return self._last_good, failed.state
        # an answer that has just changed may change again before its containers show
        if signs is not None and found is self._last_good:
            self._rests_until = time.monotonic() + REST_SECONDS - _SLACK_SECONDS
            # open, it costs a poll's worth of CPU each second
            self._drop_channel()
        self._failures, self._last_good = 0, found
        return found, _UP

    async def close(self) -> None:
        """End a question that is still open."""
        self._drop_channel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _list(self) -> tuple[Allocation, ...]:
        _look(Path(self._path))
        answer = self._ask()
        digest = hashlib.sha256(answer).digest()
        if digest == self._read[0]:
            return self._read[1]
        try:
            self._read = digest, decode_list(answer)
        except ValueError as error:
            raise _FailedError("bad_answer", f"kubelet at {self._path}: {error}") from None
        return self._read[1]

    def _ask(self) -> bytes:
        try:
            import grpc
        except ImportError:
            raise _FailedError("no_grpc", "grpcio is not installed") from None
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self._path}", options=_CHANNEL_OPTIONS)
            self._question = self._channel.unary_unary(LIST_METHOD)
        try:
            answer: bytes = self._question(b"", timeout=self._deadline)
        except grpc.RpcError as error:
            # a channel waits longer and longer before it connects again; a new one tries at once
            self._drop_channel()
            reason = _STATUS_REASONS.get(error.code().name, "failed")
            raise _FailedError(reason, f"kubelet at {self._path}: {error.details()}") from None
        except ValueError:
            raise _FailedError("failed", "closed while asking the kubelet") from None
        return answer

    def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # measuring how much a socket on the same machine lets through costs more than the question
    ("grpc.http2.bdp_probe", 0),
)


def _look(path: Path) -> None:
    """Raise the reason that gRPC would hide behind UNAVAILABLE."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        raise _FailedError("permission_denied", f"{path} may not be looked at") from None
    except OSError:
        raise _FailedError("no_socket", f"{path} is not there") from None
    if not stat.S_ISSOCK(mode):
        raise _FailedError("no_socket", f"{path} is not a socket")
    if not os.access(path, os.R_OK | os.W_OK):
        raise _FailedError("permission_denied", f"{path} may not be opened")


def decode_list(answer: bytes) -> tuple[Allocation, ...]:
    """Turn the bytes of a v1 ListPodResourcesResponse into allocations, one per container and resource.

    The kubelet repeats a resource once per NUMA node; these are joined. Containers without devices are left out. The
    devices of a claim (dynamic resource allocation) are an allocation too, with the driver's name as the resource.
    Raises ValueError if the bytes are not such a message.
    """
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for pod in _parts(memoryview(answer), 1):
        name, namespace = _first_text(pod, 1), _first_text(pod, 2)
        for container in _parts(pod, 3):
            container_name = _first_text(container, 1)
            for devices in _parts(container, 2):
                key = (namespace, name, container_name, _first_text(devices, 1))
                found.setdefault(key, []).extend(_text(part) for part in _parts(devices, 2))
            for driver, device in _claimed(container):
                found.setdefault((namespace, name, container_name, driver), []).append(device)
    return tuple(Allocation(*key, tuple(dict.fromkeys(ids))) for key, ids in found.items() if ids)


def _claimed(container: memoryview) -> Iterator[tuple[str, str]]:
    """Driver and device of each claim of a container; a share of a device is marked as device plugins mark replicas."""
    for resource in _parts(container, 5):
        for claimed in _parts(resource, 4):
            driver, device = _first_text(claimed, 2), _first_text(claimed, 4)
            share = _first_text(claimed, 5)
            for by, name in [(driver, device)] if device else _by_runtime(claimed, driver):
                yield by, f"{name}::{share}" if share else name


def _by_runtime(claimed: memoryview, driver: str) -> Iterator[tuple[str, str]]:
    """Names for the runtime (CDI): all that a kubelet tells which is too old to name the device, or even the driver."""
    for name in (_first_text(part, 1) for part in _parts(claimed, 1)):
        if device := cdi_device(name):
            yield driver or cdi_driver(name), device


def _first_text(message: memoryview, number: int) -> str:
    return next((_text(part) for part in _parts(message, number)), "")


def _text(part: memoryview) -> str:
    return str(part, "utf-8")


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Every length-delimited field of that number. Raises ValueError on bytes that are not a protobuf message."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 2:
            size, position = _varint(message, position)
            start, position = position, position + size
            if position <= end and key >> 3 == wanted:
                yield message[start:position]
        elif kind == 0:
            _, position = _varint(message, position)
        elif kind in _FIXED_SIZES:
            position += _FIXED_SIZES[kind]
        else:
            raise ValueError(f"unexpected wire type {kind}")
        if position > end:
            raise ValueError("ends in the middle of a field")


_FIXED_SIZES = {1: 8, 5: 4}


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("ends in the middle of a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number is too long")
