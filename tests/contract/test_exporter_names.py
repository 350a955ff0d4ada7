"""What the controller reads is what the exporter publishes: names, labels and values."""

from controller.sources.series import BOARD_SERIES, CONTAINER_SERIES, Fact, Holder, read_page
from exporter.catalogue import BY_NAME
from exporter.exposition import Renderer
from exporter.holdings import held_at
from exporter.samples import collect
from tests.exporter.build import gpu, holds, process, snapshot


def test_every_native_name_that_the_controller_reads_is_in_the_catalogue_with_the_labels_it_needs() -> None:
    needed = [(name, {"namespace", "pod", "container", "uuid"}) for name in CONTAINER_SERIES]
    needed += [(name, {"uuid"}) for name in BOARD_SERIES]
    native = [(name.decode(), labels) for name, labels in needed if name.startswith(b"aom_")]
    assert len(native) >= 4
    for name, labels in native:
        assert labels <= set(BY_NAME[name].labels)


def test_the_controller_reads_from_the_exporters_page_what_the_exporter_was_told() -> None:
    shared = gpu("GPU-b", processes=(process(1, "GPU-b", 100, 12.5), process(2, "GPU-b", 300, 25)))
    held = (holds('odd "pod"\\', "GPU-a"), holds("p", "GPU-b::0", pids=(1,)), holds("q", "GPU-b::1", pids=(2,)))
    of = snapshot(gpu("GPU-a"), shared, allocations=held)
    health, values = collect(of, held_at(of), "n1")
    page = Renderer().render({**values, **health}).plain.encode()
    read = read_page(page, at=0.0)
    alone = read[Holder("ml", 'odd "pod"\\', "main", "GPU-a")]
    assert alone.values == {
        Fact.UTILIZATION: 55_000,
        Fact.MEMORY_USED: 20_000_000,
        Fact.MEMORY_CAPACITY: 80_000_000,
        Fact.POWER: 350_500,
    }
    assert read[Holder("ml", "p", "main", "GPU-b")].values == {Fact.UTILIZATION: 12_500, Fact.MEMORY_USED: 100_000}
    assert read[Holder("ml", "q", "main", "GPU-b")].values == {Fact.UTILIZATION: 25_000, Fact.MEMORY_USED: 300_000}
