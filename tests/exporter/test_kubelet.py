"""The kubelet: a real gRPC server on a Unix socket that answers raw bytes encoded here, and sockets that fail."""

import asyncio
import contextlib
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter import kubelet
from exporter.kubelet import KEPT_POLLS, REST_SECONDS, KubeletAllocations, decode_list
from exporter.readings import Allocation, MigReading
from tests.exporter.build import gpu, published, snapshot, values
from tests.exporter.podresources import claim, container, devices, part, pod, serving, varint

ONE_GB = {"memory_total_bytes": 2**30, "memory_free_bytes": 0}
ONE = pod("ml", "llm-0", container("server", devices("nvidia.com/gpu", "GPU-a")))
EXPECTED = (Allocation("ml", "llm-0", "server", "nvidia.com/gpu", ("GPU-a",)),)


@pytest.fixture
def path() -> Iterator[Path]:
    # pytest's own temporary paths can be longer than a socket's path may be
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        yield Path(folder) / "kubelet.sock"


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


@contextmanager
def asking(
    path: Path | str, deadline: float = 20, signs: Callable[[], object | None] = lambda: None
) -> Iterator[KubeletAllocations]:
    source = KubeletAllocations(str(path), deadline, signs)
    try:
        yield source
    finally:
        source._drop_channel()
        source._thread.shutdown(wait=True)


class TestRealServer:
    async def test_the_containers_devices_are_listed(self, path: Path) -> None:
        answer = ONE + pod(
            "ops",
            "web",
            container("proxy", devices("example.com/nic", "eth0")),
            container("plain"),
            container("gpu", devices("nvidia.com/gpu", "GPU-b::1"), devices("nvidia.com/mig-1g.10gb", "MIG-7")),
        )
        with serving(path, lambda request, _: answer if request == b"" else b""), asking(path) as source:
            found, state = await source.allocations()
        assert state.up
        assert found == (
            *EXPECTED,
            Allocation("ops", "web", "proxy", "example.com/nic", ("eth0",)),
            Allocation("ops", "web", "gpu", "nvidia.com/gpu", ("GPU-b::1",)),
            Allocation("ops", "web", "gpu", "nvidia.com/mig-1g.10gb", ("MIG-7",)),
        )

    async def test_an_empty_node_has_no_allocations_which_is_not_unknown(self, path: Path) -> None:
        with serving(path, lambda *_: b""), asking(path) as source:
            assert await source.allocations() == ((), kubelet._UP)

    async def test_an_answer_that_says_the_same_is_not_read_again_and_another_one_is(self, path: Path) -> None:
        answers = [ONE, ONE, b"", ONE]
        with serving(path, lambda *_: answers.pop(0)), asking(path) as source:
            said = [(await source.allocations())[0] for _ in range(4)]
        assert said == [EXPECTED, EXPECTED, (), EXPECTED]
        assert said[0] is said[1]

    async def test_an_answer_of_ten_megabytes_is_read(self, path: Path) -> None:
        filler = part(9, b"\0" * 1000)
        many = b"".join(
            pod("ml", f"p-{n}", container("c", devices("nvidia.com/gpu", f"GPU-{n}"), filler)) for n in range(10_000)
        )
        assert len(many) > 10_000_000
        with serving(path, lambda *_: many), asking(path) as source:
            found, state = await source.allocations()
        assert state.up, state
        assert found is not None
        assert len(found) == 10_000

    async def test_an_answer_beyond_the_limit_is_refused_with_its_reason(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kubelet, "_CHANNEL_OPTIONS", (("grpc.max_receive_message_length", 1000),))
        with serving(path, lambda *_: part(9, b"\0" * 2000)), asking(path) as source:
            found, state = await source.allocations()
        assert (found, state.reason) == (None, "too_large")

    async def test_it_is_left_alone_while_no_container_changes_and_for_a_few_seconds_at_most(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[int] = []
        signs: list[object] = ["one pod"]
        now = [100.0]
        monkeypatch.setattr(kubelet.time, "monotonic", lambda: now[0])

        async def asks() -> int:
            before = len(asked)
            assert await source.allocations() == (EXPECTED, kubelet._UP)
            return len(asked) - before

        with serving(path, lambda *_: asked.append(1) or ONE), asking(path, signs=lambda: signs[0]) as source:
            assert [await asks() for _ in range(4)] == [1, 1, 0, 0], "a new answer is asked for once more"
            now[0] += REST_SECONDS
            assert [await asks() for _ in range(2)] == [1, 0]
            signs[0] = "two pods"
            assert [await asks() for _ in range(2)] == [1, 0]
            signs[0] = None
            assert [await asks() for _ in range(2)] == [1, 1], "nothing tells whether anything changed"

    async def test_a_kubelet_that_fails_is_not_left_alone(self, path: Path) -> None:
        with asking(path, signs=lambda: "the same") as source:
            with serving(path, lambda *_: ONE):
                for _ in range(3):
                    await source.allocations()
            remove(path)
            assert (await source.allocations())[1].up, "it was asked a moment ago"
            source._rests_until = 0
            assert not (await source.allocations())[1].up
            with serving(path, lambda *_: ONE):
                assert (await source.allocations())[1].up

    async def test_a_kubelet_that_comes_back_is_asked_again_at_once(self, path: Path) -> None:
        with asking(path) as source:
            with serving(path, lambda *_: ONE):
                assert (await source.allocations())[1].up
            remove(path)
            assert (await source.allocations())[1].reason == "no_socket"
            with serving(path, lambda *_: ONE):
                assert await source.allocations() == (EXPECTED, kubelet._UP)

    async def test_the_last_answer_is_kept_for_three_failures_and_no_longer(self, path: Path) -> None:
        with asking(path) as source:
            with serving(path, lambda *_: ONE):
                await source.allocations()
            remove(path)
            kept = [await source.allocations() for _ in range(KEPT_POLLS + 1)]
        assert [found for found, _ in kept] == [EXPECTED] * 3 + [None]
        assert not any(state.up for _, state in kept)

    async def test_an_answer_in_between_starts_the_count_again(self, path: Path) -> None:
        with asking(path) as source:
            for _ in range(2):
                with serving(path, lambda *_: ONE):
                    await source.allocations()
                remove(path)
                kept = [(await source.allocations())[0] for _ in range(KEPT_POLLS)]
        assert kept == [EXPECTED] * KEPT_POLLS

    async def test_an_older_kubelet_without_v1_is_named(self, path: Path) -> None:
        old = "/v1alpha1.PodResourcesLister/List"
        with serving(path, lambda *_: ONE, method=old), asking(path) as source:
            found, state = await source.allocations()
        assert (found, state.reason) == (None, "unimplemented")
        assert "1.20" in state.message

    async def test_a_refusal_carries_the_kubelets_words(self, path: Path) -> None:
        def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.INTERNAL, "device manager is on fire")
            return b""

        with serving(path, refuse), asking(path) as source:
            _, state = await source.allocations()
        assert state.reason == "failed"
        assert "device manager is on fire" in state.message

    async def test_an_answer_that_is_no_list_is_a_bad_answer(self, path: Path) -> None:
        with serving(path, lambda *_: b"\x0a\xff"), asking(path) as source:
            found, state = await source.allocations()
        assert (found, state.reason) == (None, "bad_answer")

    async def test_a_call_that_is_never_answered_ends_at_its_deadline(self, path: Path) -> None:
        release = threading.Event()

        def hang(*_: object) -> bytes:
            release.wait(30)
            return b""

        with serving(path, hang), asking(path, deadline=0.2) as source:
            found, state = await source.allocations()
            release.set()
        assert (found, state.reason) == (None, "timeout")


class TestNoServer:
    async def test_a_socket_that_accepts_and_never_answers_ends_at_the_deadline(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(path))
            silent.listen()
            with asking(path, deadline=0.2) as source:
                found, state = await source.allocations()
        assert (found, state.reason) == (None, "timeout")

    async def test_a_socket_that_is_not_there_says_what_to_mount(self, path: Path) -> None:
        with asking(path) as source:
            found, state = await source.allocations()
        assert (found, state.up, state.reason) == (None, False, "no_socket")
        assert str(path) in state.message
        assert "mount" in state.message

    async def test_a_file_in_place_of_the_socket_is_named(self, path: Path) -> None:
        path.write_text("")  # noqa: ASYNC240 - an empty file
        with asking(path) as source:
            _, state = await source.allocations()
        assert state.reason == "no_socket"
        assert "not a socket" in state.message

    async def test_a_socket_without_a_listener_is_unavailable(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with asking(path) as source:
            _, state = await source.allocations()
        assert state.reason == "unavailable"

    @pytest.mark.parametrize("denied", ["the folder", "the socket"])
    async def test_a_socket_that_may_not_be_opened_says_who_may(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
    ) -> None:
        def refuse(_self: Path) -> None:
            raise PermissionError

        with socket.socket(socket.AF_UNIX) as there:
            there.bind(str(path))
            if denied == "the folder":
                monkeypatch.setattr(Path, "stat", refuse)
            else:
                monkeypatch.setattr(kubelet.os, "access", lambda *_: False)
            with asking(path) as source:
                found, state = await source.allocations()
        assert (found, state.reason) == (None, "permission_denied")
        assert "user 0" in state.message

    async def test_without_grpcio_the_cure_is_its_installation(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "grpc", None)
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(str(path))
            with asking(path) as source:
                found, state = await source.allocations()
        assert (found, state.reason) == (None, "no_grpc")
        assert "gpuscale[kubelet]" in state.message

    async def test_switched_off_is_not_an_error(self) -> None:
        with asking("") as source:
            found, state = await source.allocations()
        assert (found, state.reason) == (None, "off")

    async def test_closing_ends_a_question_that_hangs(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(path))
            silent.listen()
            source = KubeletAllocations(str(path), 60)
            question = asyncio.create_task(source.allocations())
            connection, _ = await asyncio.to_thread(silent.accept)
            with connection:
                await source.close()
                _, state = await asyncio.wait_for(question, 10)
        assert not state.up


class TestWire:
    def test_a_resource_that_is_repeated_for_each_numa_node_is_joined(self) -> None:
        topology = part(3, part(1, varint(1 << 3) + varint(0)))
        answer = pod(
            "ml",
            "p",
            container(
                "c", devices("nvidia.com/gpu", "GPU-a", noise=topology), devices("nvidia.com/gpu", "GPU-b", "GPU-a")
            ),
        )
        assert decode_list(answer) == (Allocation("ml", "p", "c", "nvidia.com/gpu", ("GPU-a", "GPU-b")),)

    def test_fields_of_other_types_and_numbers_are_skipped(self) -> None:
        extra = varint(7 << 3) + varint(2**63) + varint(8 << 3 | 1) + b"\0" * 8 + varint(9 << 3 | 5) + b"\0" * 4
        assert decode_list(extra + ONE + extra) == EXPECTED

    @pytest.mark.parametrize("end", range(1, len(ONE)))
    def test_an_answer_that_is_cut_short_is_refused(self, end: int) -> None:
        with pytest.raises(ValueError, match="ends in the middle"):
            decode_list(ONE[:end])

    @pytest.mark.parametrize("broken", [b"\x0b", b"\x0f", b"\xff" * 11, part(1, part(1, b"\xff"))])
    def test_bytes_that_are_no_message_are_refused(self, broken: bytes) -> None:
        with pytest.raises(ValueError, match=r"wire type|too long|utf-8"):
            decode_list(broken + ONE)

    @settings(deadline=None)
    @given(st.binary(max_size=60))
    def test_no_bytes_do_anything_but_decode_or_be_refused(self, noise: bytes) -> None:
        with contextlib.suppress(ValueError):
            assert isinstance(decode_list(noise), tuple)


class TestClaims:
    def test_a_claims_device_is_an_allocation_of_its_driver(self) -> None:
        answer = pod("ml", "p", container("main", claim(device="gpu-1", cdi=("k8s.gpu.nvidia.com/device=gpu-1",))))
        assert decode_list(answer) == (Allocation("ml", "p", "main", "gpu.nvidia.com", ("gpu-1",)),)

    def test_without_a_device_name_the_runtimes_name_tells_it(self) -> None:
        answer = pod(
            "ml", "p", container("main", claim(cdi=("k8s.gpu.nvidia.com/claim=6b1b-gpu-3", "other.com/x=all")))
        )
        assert decode_list(answer) == (Allocation("ml", "p", "main", "gpu.nvidia.com", ("gpu-3",)),)

    def test_a_share_of_a_device_is_not_the_device(self) -> None:
        answer = pod("ml", "p", container("main", claim(device="gpu-1", share="5d9c")))
        assert decode_list(answer) == (Allocation("ml", "p", "main", "gpu.nvidia.com", ("gpu-1::5d9c",)),)

    def test_a_claim_and_a_device_plugins_devices_stand_side_by_side(self) -> None:
        both = container(
            "main", devices("nvidia.com/gpu", "GPU-a"), claim(device="gpu-1"), claim(driver="nic.example.com")
        )
        assert [one.resource for one in decode_list(pod("ml", "p", both))] == ["nvidia.com/gpu", "gpu.nvidia.com"]

    def test_a_claimed_gpu_has_its_holders_series(self) -> None:
        held = decode_list(pod("ml", "p", container("main", claim(device="gpu-1"))))
        series = published(snapshot(gpu("GPU-a"), gpu("GPU-b", index=1, utilization_percent=7), allocations=held))
        assert values(series, "aom_container_gpu_usage", uuid="GPU-b", pod="p") == [7]

    def test_a_claimed_gpu_that_was_partitioned_is_explained(self) -> None:
        held = decode_list(pod("ml", "p", container("main", claim(device="gpu-0-mig-1g10gb-19-0"))))
        series = published(snapshot(gpu("GPU-a"), allocations=held))
        assert values(series, "gpuscale_container_attribution", pod="p", reason="mig_device") == [0]

    def test_a_kubelet_that_names_no_driver_names_it_for_the_runtime(self) -> None:
        old = claim(
            driver="", cdi=("k8s.gpu.nvidia.com/claim=6b1b-gpu-0-mig-19-3-1", "k8s.gpu.example.com/claim=x-gpu-0")
        )
        assert decode_list(pod("ml", "p", container("main", old))) == (
            Allocation("ml", "p", "main", "gpu.nvidia.com", ("gpu-0-mig-19-3-1",)),
            Allocation("ml", "p", "main", "gpu.example.com", ("gpu-0",)),
        )

    def test_another_vendors_claim_of_a_device_of_the_same_name_is_nobodys_here(self) -> None:
        held = decode_list(pod("ml", "p", container("main", claim(driver="gpu.example.com", device="gpu-0"))))
        series = published(snapshot(gpu("GPU-a"), allocations=held))
        assert values(series, "gpuscale_container_attribution") == values(series, "aom_container_gpu_usage") == []

    async def test_a_claimed_instance_over_the_real_socket_has_its_holders_memory(self, path: Path) -> None:
        board = gpu(
            "GPU-a",
            mig_enabled=True,
            mig=tuple(
                MigReading(f"MIG-{start}", 7 + start, 0, "1g.10gb", memory_used_bytes=used * 2**20, **ONE_GB, **place)
                for start, used in ((0, 100), (3, 400))
                for place in ({"profile_id": 19, "placement_start": start},)
            ),
        )
        answer = pod("ml", "new", container("main", claim(device="gpu-0-mig-1g10gb-19-3"))) + pod(
            "ml", "old", container("main", claim(device="gpu-0-mig-19-0-1"))
        )
        with serving(path, lambda *_: answer), asking(path) as source:
            held, _ = await source.allocations()
        series = published(snapshot(board, allocations=held))
        used = "aom_container_gpu_memory_used_megabytes"
        assert values(series, used, pod="new", uuid="GPU-a") == [400]
        assert values(series, used, pod="old", uuid="GPU-a") == [100]
