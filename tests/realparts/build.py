"""``python -m tests.realparts.build``: builds the real programs that the tests run, from pinned Go modules.

Why it exists: the judge of the emulator and of the operator is a real Kubernetes, and nobody should have to install
one. Programs go to a cache outside the tree, each under a name that holds a digest of the files it is made from, so
that nothing is built twice and nothing stale is run. A program found in KUBEBUILDER_ASSETS is used instead.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ASSETS = "KUBEBUILDER_ASSETS"
CACHE = "GPUSCALE_REAL_PARTS"
DIGITS = 16


class MissingError(Exception):
    """Programs are absent and cannot be built; the message is one line and says what would help."""


@dataclass(frozen=True, slots=True)
class Part:
    """One program: the folder with its go.mod, the package, and the variables that tell it its version.

    ``module`` is the one in go.mod whose version is the program's; ``asked`` makes it print that version.
    """

    name: str
    folder: str
    package: str
    module: str
    stamps: tuple[str, ...] = ()
    asked: tuple[str, ...] = ("--version",)
    tested: str = ""
    """A folder whose test binary is the program."""
    tags: str = field(default="", repr=False)
    """Build tags, separated by commas."""

    @property
    def source(self) -> Path:
        """The folder of its go.mod."""
        return HERE / self.folder

    def version(self) -> str:
        """Give the version that go.mod pins, such as v1.36.3."""
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", (self.source / "go.mod").read_text(), re.M
        )
        if found is None:
            raise MissingError(f"{self.source / 'go.mod'} does not require {self.module}")
        return found[1]

    def digest(self) -> str:
        """Digest all that the program is made from."""
        files = [self.source / name for name in ("go.mod", "go.sum", "tools.go")]
        if self.tested:
            files = files[:2] + sorted((self.source / self.tested).glob("*.go"))
        digest = hashlib.sha256(f"{self}{self.tags}".encode())
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        return digest.hexdigest()[:DIGITS]

    def command(self, out: Path) -> list[str]:
        """Give the go command that writes the program to ``out``."""
        verb = ["test", "-c"] if self.tested else ["build"]
        stamps = "".join(f" -X {stamp.format(version=self.version())}" for stamp in self.stamps)
        return [
            "go",
            *verb,
            "-trimpath",
            "-tags",
            self.tags,
            "-ldflags",
            f"-s -w{stamps}",
            "-o",
            str(out),
            self.package,
        ]


_BASE = "k8s.io/component-base/version"
_KUBERNETES = "k8s.io/kubernetes"
_STAMPS = (f"{_BASE}.gitVersion={{version}}", f"{_BASE}.gitMajor=1", f"{_BASE}.gitMinor=36")
_PROMETHEUS = "github.com/prometheus/prometheus"
_ALERTMANAGER = "github.com/prometheus/alertmanager"
_DISCOVERIES = "remove_all_sd,enable_kubernetes_sd"
"""Targets are found in Kubernetes and in files: the kits of twenty clouds need not be compiled."""
_SELF = ("github.com/prometheus/common/version.Version={version}",)


def _kubernetes(name: str, *asked: str) -> Part:
    return Part(name, "kubernetes", f"{_KUBERNETES}/cmd/{name}", _KUBERNETES, _STAMPS, asked or ("--version",))


PARTS = (
    Part("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubectl", "version", "--client"),
    Part("hpa-oracle", "kubernetes", "./hpa", _KUBERNETES, asked=(), tested="hpa"),
    Part("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok"),
    Part(
        "helm",
        "helm",
        "helm.sh/helm/v4/cmd/helm",
        "helm.sh/helm/v4",
        ("helm.sh/helm/v4/internal/version.version={version}",),
        ("version", "--short"),
    ),
    Part("prometheus", "prometheus", f"{_PROMETHEUS}/cmd/prometheus", _PROMETHEUS, _SELF, tags=_DISCOVERIES),
    Part("promtool", "prometheus", f"{_PROMETHEUS}/cmd/promtool", _PROMETHEUS, _SELF, tags=_DISCOVERIES),
    Part("amtool", "prometheus", f"{_ALERTMANAGER}/cmd/amtool", _ALERTMANAGER, _SELF),
)
BY_NAME = {part.name: part for part in PARTS}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")


def programs(*names: str) -> Path:
    """Give a folder that holds these programs (default: all), under their names. Builds nothing.

    Raises MissingError. Takes milliseconds.
    """
    wanted = [BY_NAME[name] for name in names] or list(PARTS)
    found = {part.name: path for part in wanted if (path := place(part)) is not None}
    absent = [part.name for part in wanted if part.name not in found]
    if absent:
        raise MissingError(f"{', '.join(absent)} not built: run `make real-parts`{_no_go()}")
    return _folder_of(found)


def place(part: Part) -> Path | None:
    """Give the file to run for a part: from KUBEBUILDER_ASSETS, else from the cache; None where it is in neither."""
    for path in (_asset(part), cached(part)):
        if path is not None and path.is_file():
            return path
    return None


def cached(part: Part) -> Path:
    """Give the file in the cache, which may not be there yet."""
    return cache() / f"{part.name}-{part.digest()}"


def cache() -> Path:
    """Give the folder of built programs: GPUSCALE_REAL_PARTS, else under XDG_CACHE_HOME, else under ~/.cache."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuscale" / "real-parts"


def unexpected() -> list[str]:
    """Ask each program of KUBEBUILDER_ASSETS for its version; a line for each that is not the pinned one."""
    folder = os.environ.get(ASSETS)
    if folder and not Path(folder).is_dir():
        return [f"{ASSETS}: {folder} is no folder; what is built here is used instead"]
    given = [(part, path) for part in PARTS if (path := _asset(part)) is not None and path.is_file() and part.asked]
    return [line for part, path in given if (line := _disagreement(part, path))]


def build(part: Part) -> float:
    """Build one program into the cache; the seconds it took, 0 if another process did it meanwhile.

    Raises MissingError where Go is absent or fails.
    """
    target = cached(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(part):
        if target.is_file():
            return 0.0
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f".{part.name}-", dir=target.parent) as folder:
            out = Path(folder) / part.name
            _go(part, out)
            out.rename(target)
        return time.monotonic() - began


def _go(part: Part, out: Path) -> None:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    try:
        subprocess.run(part.command(out), cwd=part.source, env=environment, check=True)
    except FileNotFoundError:
        raise MissingError(f"{part.name} cannot be built{_no_go()}") from None
    except subprocess.CalledProcessError as failed:
        raise MissingError(f"go could not build {part.name}: exit code {failed.returncode}") from None


@contextlib.contextmanager
def _alone(part: Part) -> Iterator[None]:
    """Keep a second process from building the same program at the same time."""
    with (cache() / f".{part.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _asset(part: Part) -> Path | None:
    folder = os.environ.get(ASSETS)
    return Path(folder) / part.name if folder else None


def _disagreement(part: Part, path: Path) -> str:
    try:
        ran = subprocess.run([path, *part.asked], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path}, which {ASSETS} names, cannot be run: {error}"
    said = re.search(r"v?(\d+\.\d+\.\d+)", ran.stdout + ran.stderr)
    pinned = part.version().removeprefix("v")
    if said is not None and said[1] == pinned:
        return ""
    return f"{path} is of version {said[1] if said else 'unknown'}; the tests are written for {pinned}"


def _no_go() -> str:
    return "" if shutil.which("go") else "; Go is not installed (https://go.dev/doc/install)"


def _folder_of(found: Mapping[str, Path]) -> Path:
    """Give a folder of links to these files; made once, by a rename."""
    key = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:DIGITS]
    folder = cache() / f"bin-{key}"
    if not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".bin-", dir=cache()))
        for name, path in found.items():
            (made / name).symlink_to(path)
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Build what is missing. Without Go: say so, and fail only with CI=true."""
    parser = argparse.ArgumentParser(description="build the real programs that the tests run")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {' '.join(BY_NAME)}")
    parser.add_argument("--where", action="store_true", help="print the folder that holds them, build nothing")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(BY_NAME)):
        parser.error(f"no such program: {', '.join(unknown)}")
    try:
        if not args.where:
            _build_missing([BY_NAME[name] for name in args.names] or list(PARTS))
        print(programs(*args.names))
    except MissingError as missing:
        print(f"real parts: {missing}", file=sys.stderr)
        return _exit_code(go_is_there=shutil.which("go") is not None or args.where)
    return 0


def _exit_code(*, go_is_there: bool) -> int:
    if go_is_there or os.environ.get("CI", "").lower() == "true":
        return 1
    print("real parts: the tests that need them are skipped", file=sys.stderr)
    return 0


def _build_missing(parts: Sequence[Part]) -> None:
    for line in unexpected():
        print(f"real parts: {line}")
    missing = [part for part in parts if place(part) is None]
    if missing and shutil.which("go") is None:
        raise MissingError(f"{', '.join(part.name for part in missing)} cannot be built{_no_go()}")
    began = time.monotonic()
    for part in missing:
        print(f"building {part.name} {part.version()} ...", end=" ", flush=True)
        print(f"{build(part):.1f} s", flush=True)
    if missing:
        print(f"built {len(missing)} of {len(parts)} programs in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
