"""The import table: which part may know which other part, and which library lives where."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CORE_STANDARD_LIBRARY = {"math", "dataclasses", "enum", "typing", "collections", "itertools", "statistics", "bisect"}

# library -> the only modules (files, or folders ending in /) that may import it, and why it is one place
ONLY_IMPORTERS = {
    "kopf": (("controller/handlers.py",), "kopf is the shell: one module feeds the registry from it"),
    "pynvml": (("exporter/nvml/",), "the driver is read in one package"),
    "kubernetes": (("controller/access.py",), "the cluster is found, and we say who we are, in one place"),
    "bcrypt": (("exporter/guard.py", "exporter/webconfig.py"), "bcrypt is an extra that only users need"),
    "grpc": (("exporter/kubelet.py",), "gRPC is an extra that only the kubelet's socket needs"),
}

# part -> prefixes of project modules that it may import; the first matching part counts
ALLOWED = {
    "controller/core/": ("controller.core",),
    "exporter/": ("exporter",),
    "controller/": ("controller", "exporter.catalogue"),
}

# more precise bans inside a part: importer -> what it must not import, and why
FORBIDDEN = {
    "controller/policy.py": (("controller.cluster", "controller.sources", "controller.sandbox"), "policy is pure"),
    "controller/observe.py": (("controller.cluster", "controller.sandbox"), "observe is pure"),
    "controller/status.py": (("controller.cluster", "controller.sources", "controller.sandbox"), "status is pure"),
    "controller/loop.py": (("controller.sandbox",), "the operator does not know that it is being demonstrated"),
    "controller/run.py": (("controller.sandbox",), "the operator does not know that it is being demonstrated"),
    "exporter/samples.py": (("exporter.nvml", "exporter.server", "exporter.poller"), "samples is pure"),
    **{
        f"exporter/{name}.py": (("exporter.nvml", "exporter.server", "exporter.poller"), f"{name} is pure")
        for name in ("containers", "device_ids", "health", "holdings", "believable")
    },
    "exporter/exposition.py": (("exporter.nvml", "exporter.server", "exporter.poller"), "exposition is pure"),
}

PURE_NO_CLOCK = ("controller/core/", "controller/policy.py", "controller/observe.py", "controller/status.py")


def imported_modules(source: str) -> list[str]:
    """Every module that the source names in an import, as ``a.b.c``; ``from a import b`` gives ``a`` and ``a.b``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append("." * node.level + (node.module or ""))
            else:
                found.append(node.module or "")
                found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def faults(path: str, source: str) -> list[str]:
    """What is wrong with the imports of one file, each as a sentence that names the import."""
    modules = imported_modules(source)
    return (
        _relative(path, modules)
        + _core(path, modules)
        + _owners(path, modules)
        + _layers(path, modules)
        + _bans(path, modules)
        + _clock(path, modules)
    )


def _relative(path: str, modules: list[str]) -> list[str]:
    return [f"{path} imports {m}: write the whole name" for m in modules if m.startswith(".")]


def _core(path: str, modules: list[str]) -> list[str]:
    if not path.startswith("controller/core/"):
        return []
    allowed = CORE_STANDARD_LIBRARY | {"controller"}
    return [
        f"{path} imports {m}: the decision core is pure and may import only itself and "
        f"{' '.join(sorted(CORE_STANDARD_LIBRARY))}"
        for m in modules
        if m.split(".")[0] not in allowed
    ]


def _owners(path: str, modules: list[str]) -> list[str]:
    found = []
    for library, (owners, why) in ONLY_IMPORTERS.items():
        if any(m.split(".")[0] == library for m in modules) and not path.startswith(owners):
            found.append(f"{path} imports {library}: only {', '.join(owners)} may, because {why}")
    return found


def _layers(path: str, modules: list[str]) -> list[str]:
    allowed = next(prefixes for part, prefixes in ALLOWED.items() if path.startswith(part))
    project = [
        m for m in modules if m.split(".")[0] in {"exporter", "controller"} and m not in {"exporter", "controller"}
    ]
    return [
        f"{path} imports {m}: this part may import only {', '.join(allowed)}"
        for m in project
        if not any(m == prefix or m.startswith(prefix + ".") for prefix in allowed)
    ]


def _bans(path: str, modules: list[str]) -> list[str]:
    banned, why = FORBIDDEN.get(path, ((), ""))
    return [f"{path} imports {m}: {why}" for m in modules if m.startswith(tuple(banned)) and banned]


def _clock(path: str, modules: list[str]) -> list[str]:
    if not path.startswith(PURE_NO_CLOCK):
        return []
    impure = {"time", "datetime", "random", "asyncio", "logging", "os", "pathlib", "socket", "aiohttp"}
    allowed_here = {"datetime"} if not path.startswith("controller/core/") else set()
    return [f"{path} imports {m}: it is pure" for m in modules if m.split(".")[0] in impure - allowed_here]


def project_files() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for part in ("exporter", "controller") for p in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("path", project_files())
def test_a_module_imports_only_what_the_table_allows(path: str) -> None:
    assert faults(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "named"),
    [
        ("controller/core/replicas.py", "import time", "time"),
        ("controller/core/replicas.py", "from controller.cluster import Cluster", "controller.cluster"),
        ("controller/core/replicas.py", "from datetime import datetime", "datetime"),
        ("controller/loop.py", "import kopf", "kopf"),
        ("exporter/poller.py", "import pynvml", "pynvml"),
        ("exporter/samples.py", "from controller.core import model", "controller.core"),
        ("controller/observe.py", "from exporter.readings import Snapshot", "exporter.readings"),
        ("controller/status.py", "import time", "time"),
        ("controller/loop.py", "from . import act", "."),
    ],
)
def test_a_planted_import_is_found_and_named(path: str, source: str, named: str) -> None:
    found = faults(path, source)
    assert found
    assert all(path in sentence for sentence in found)
    assert any(named in sentence for sentence in found)


def test_only_the_entry_points_read_the_environment() -> None:
    allowed = {
        "exporter/__main__.py",
        "exporter/settings.py",
        "controller/settings.py",
        "controller/run.py",
        "controller/sandbox/children.py",  # takes our settings out of it for the demo's processes
    }
    readers = [
        path
        for path in project_files()
        if path not in allowed
        and any(
            isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
        )
    ]
    assert readers == []


def test_no_module_bears_the_name_of_a_standard_one() -> None:
    """kopf and python -m put folders on the import path: controller/operator.py would then shadow operator."""
    names = {Path(path).stem for path in project_files()} - {"__init__", "__main__"}
    assert names & sys.stdlib_module_names == set()
