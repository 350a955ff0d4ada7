"""What ``make real-parts`` says and does, without building anything."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.realparts import build

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "#!/bin/sh\necho {name} v{version}\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(build.CACHE, str(folder))
    monkeypatch.delenv(build.ASSETS, raising=False)
    monkeypatch.delenv("CI", raising=False)
    return folder


def pretend(part: build.Part, path: Path, version: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(name=part.name, version=version or part.version().removeprefix("v")))
    path.chmod(0o755)


def fill(cache: Path) -> None:
    for part in build.PARTS:
        pretend(part, build.cached(part))


@pytest.fixture
def without_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))


def test_every_program_has_a_pinned_version_and_a_digest_of_its_own() -> None:
    assert all(part.version().startswith("v") for part in build.PARTS)
    assert len({part.digest() for part in build.PARTS}) == len(build.PARTS)
    assert build.BY_NAME["kube-apiserver"].version() == build.BY_NAME["kubectl"].version()


def test_a_program_built_with_other_tags_is_another_program(tmp_path: Path) -> None:
    part = build.BY_NAME["prometheus"]
    assert part.tags in part.command(tmp_path / "out")
    assert dataclasses.replace(part, tags="").digest() != part.digest()


def test_the_programs_that_are_asked_for_lie_in_one_folder_under_their_names(cache: Path) -> None:
    fill(cache)
    folder = build.programs(*build.CONTROL_PLANE)
    assert sorted(path.name for path in folder.iterdir()) == sorted(build.CONTROL_PLANE)
    assert build.programs(*build.CONTROL_PLANE) == folder
    assert (folder / "etcd").resolve() == build.cached(build.BY_NAME["etcd"])


def test_what_is_not_built_is_named_with_the_cure(cache: Path) -> None:
    pretend(build.BY_NAME["etcd"], build.cached(build.BY_NAME["etcd"]))
    with pytest.raises(build.MissingError, match=r"^kwok not built: run `make real-parts`"):
        build.programs("etcd", "kwok")


def test_programs_of_kubebuilder_assets_come_first_and_an_unexpected_version_is_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache)
    assets = tmp_path / "assets"
    pretend(build.BY_NAME["etcd"], assets / "etcd")
    pretend(build.BY_NAME["kube-apiserver"], assets / "kube-apiserver", "1.20.0")
    monkeypatch.setenv(build.ASSETS, str(assets))
    folder = build.programs("etcd", "kube-apiserver", "kwok")
    assert (folder / "etcd").resolve() == assets / "etcd"
    assert (folder / "kwok").resolve() == build.cached(build.BY_NAME["kwok"])
    [line] = build.unexpected()
    pinned = build.BY_NAME["kube-apiserver"].version().removeprefix("v")
    assert line == f"{assets / 'kube-apiserver'} is of version 1.20.0; the tests are written for {pinned}"


@pytest.mark.parametrize(("mode", "content"), [(0o644, PROGRAM), (0o755, "no program\n")])
def test_a_program_of_kubebuilder_assets_that_cannot_run_is_named(
    mode: int, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcd").write_text(content)
    (tmp_path / "etcd").chmod(mode)
    monkeypatch.setenv(build.ASSETS, str(tmp_path))
    [line] = build.unexpected()
    assert line.startswith(f"{tmp_path / 'etcd'}, which KUBEBUILDER_ASSETS names, cannot be run: ")


def test_a_folder_of_kubebuilder_assets_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.ASSETS, str(tmp_path / "nowhere"))
    [line] = build.unexpected()
    assert line == f"KUBEBUILDER_ASSETS: {tmp_path / 'nowhere'} is no folder; what is built here is used instead"


def test_when_all_is_there_nothing_is_built(cache: Path) -> None:
    fill(cache)
    command = [sys.executable, "-m", "tests.realparts.build"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "building" not in ran.stdout
    assert Path(ran.stdout.strip()).is_dir()


@pytest.mark.usefixtures("without_go")
def test_without_go_one_clear_line_and_the_tests_are_skipped(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.main(["kwok"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "real parts: kwok cannot be built; Go is not installed (https://go.dev/doc/install)"
    monkeypatch.setenv("CI", "true")
    assert build.main(["kwok"]) == 1


def test_two_builds_at_the_same_time_build_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f'#!/bin/sh\necho built >> {tmp_path}/count\nwhile [ "$1" != -o ]; do shift; done\necho > "$2"\n')
    go.chmod(0o755)
    command = [sys.executable, "-m", "tests.realparts.build", "kwok"]
    environment = os.environ | {"PATH": f"{go.parent}:{os.environ['PATH']}"}
    both = [subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert (tmp_path / "count").read_text() == "built\n"
    assert [path.name for path in cache.iterdir() if path.name.startswith("kwok")] == [
        build.cached(build.BY_NAME["kwok"]).name
    ]
