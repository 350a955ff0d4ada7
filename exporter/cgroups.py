"""Which pod and container a process of the host runs in, read from /proc: no API server, no container runtime.

Why it exists: the driver gives pids of the host's pid namespace. Seen from another namespace such a pid does not
exist, or belongs to somebody else; so nothing is read unless this /proc is known to be the host's.
"""

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

KERNEL_THREADS = "kthreadd"
"""Process 2 of a machine, and of no other pid namespace."""
_CHUNK_BYTES = 4096

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
# .../kubepods-burstable-podUID.slice/cri-containerd-ID.scope, .../podUID/ID, podUID.slice:crio:ID; all nested or not
_POD_AND_CONTAINER = re.compile(
    rf"pod(?P<uid>{_UID})(?:\.slice)?[/:](?:[a-z-]+[-:])?(?P<id>[0-9a-f]{{64}})(?![0-9a-f])"
)
_POD = re.compile(rf"pod(?P<uid>{_UID})(?![0-9a-f])")
_LOG = re.compile(r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<container>[^_]+)-(?P<id>[0-9a-f]{64})\.log")
_ID_IN_LOG = slice(-len(".log") - 64, -len(".log"))
_LOG_TARGET = re.compile(rf"_(?P<uid>{_UID})(?:/|$)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: the pod's uid (with dashes) and the container's id at the runtime."""

    pod_uid: str
    container_id: str


@dataclass(frozen=True, slots=True)
class Named:
    """What the kubelet calls a container. pod_uid "" = not told."""

    namespace: str
    pod: str
    container: str
    pod_uid: str


NOBODY_KNOWN: Mapping[str, Named] = {}


@functools.lru_cache(maxsize=256)
def parse_cgroup(text: str) -> tuple[Place, ...]:
    """PURE: read /proc/PID/cgroup, v1 or v2, of containerd, cri-o and docker. Outermost first where pods are nested."""
    found = (Place(_dashed(match["uid"]), match["id"]) for match in _POD_AND_CONTAINER.finditer(text))
    return tuple(dict.fromkeys(found))


def is_host_proc(proc: Path) -> bool:
    """Whether this /proc shows the host's processes."""
    return _comm(f"{proc}/2") == KERNEL_THREADS


def places(proc: Path, pids: Iterable[int]) -> dict[int, tuple[Place, ...] | None]:
    """Where each process runs: () = in no pod, None = there is no such process."""
    return {pid: None if (text := _cgroup(f"{proc}/{pid}")) is None else parse_cgroup(text) for pid in pids}


def process_names(proc: Path, pids: Iterable[int]) -> dict[int, str]:
    """Read what the kernel calls each process, at most 15 bytes of any text; one that has ended has none.

    Not its command line: the kernel answers for that only while the process's memory is not locked, as it may be by
    a driver's call that hangs.
    """
    found = {pid: _comm(f"{proc}/{pid}") for pid in pids}
    return {pid: name for pid, name in found.items() if name}


def live_pods(proc: Path) -> dict[str, int]:
    """Uid of each pod that has a process, its sandbox's included -> the pid of one.

    Raises OSError if ``proc`` can't be listed.
    """
    return {uid: pid for pid, text in _all_cgroups(proc) for uid in _pods(text)}


def runs_in(proc: Path, pid: int, pod_uid: str) -> bool:
    """Whether there is such a process, and in that pod: a pid may be given again."""
    return pod_uid in _pods(_cgroup(f"{proc}/{pid}") or "")


def container_names(directory: Path, known: Mapping[str, Named] = NOBODY_KNOWN) -> dict[str, Named]:
    """Id of a container -> its names, from the names of the links in /var/log/containers; no log is opened.

    known: what was found before. An id is never given again, so whose it is stays. Raises OSError if the directory
    can't be listed.
    """
    found: dict[str, Named] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            before = known.get(entry.name[_ID_IN_LOG])
            if before and before.pod_uid:
                found[entry.name[_ID_IN_LOG]] = before
            elif match := _LOG.fullmatch(entry.name):
                found[match["id"]] = _named(match, entry.path)
    return found


def _named(match: re.Match[str], link: str) -> Named:
    return Named(match["namespace"], match["pod"], match["container"], _uid_of(link))


def _uid_of(link: str) -> str:
    try:
        match = _LOG_TARGET.search(os.readlink(link))  # noqa: PTH115 - no Path is made for each container
    except OSError:
        return ""
    return _dashed(match["uid"]) if match else ""


def _dashed(uid: str) -> str:
    return uid.replace("_", "-")


def _pods(text: str) -> Iterator[str]:
    return (_dashed(match["uid"]) for match in _POD.finditer(text))


def _all_cgroups(proc: Path) -> Iterator[tuple[int, str]]:
    with os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdecimal() and (text := _cgroup(entry.path)):
                yield int(entry.name), text


def _comm(process: str) -> str:
    # the name itself may hold a newline, or no text at all
    return (_read(f"{process}/comm") or "").removesuffix("\n")


def _cgroup(process: str) -> str | None:
    return _read(f"{process}/cgroup")


def _read(file: str) -> str | None:
    """Read one of the kernel's small files; None = it is not there. Path and open() cost five times the reading."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = part = os.read(handle, _CHUNK_BYTES)
        # the kernel makes such a file in one piece: what did not fill the buffer was all of it
        while len(part) == _CHUNK_BYTES:
            part = os.read(handle, _CHUNK_BYTES)
            found += part
        return found.decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(handle)
