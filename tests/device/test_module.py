"""`torch.jax` and `torch.accelerator`."""

import gc
import threading

import pytest
import torch


def test_it_is_the_accelerator():
    assert torch.accelerator.current_accelerator() == torch.device("jax")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.jax.device_count() == 1
    assert torch.accelerator.current_device_index() == torch.jax.current_device() == 0
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        torch.accelerator.synchronize()
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.get_device_module("jax") is torch.jax
    assert torch.get_device_module() is torch.jax


def test_state():
    torch.jax.init()
    assert torch.jax.is_initialized()
    assert torch.jax.is_available()
    assert not torch.jax._is_in_bad_fork()
    assert torch.jax.is_bf16_supported()
    assert torch.bfloat16 in torch.jax.get_amp_supported_dtype()


def test_everything_that_is_public_exists_and_is_documented():
    for name in torch.jax.__all__:
        assert getattr(torch.jax, name).__doc__, name


def test_properties():
    properties = torch.jax.get_device_properties()
    assert properties.name == torch.jax.get_device_name()
    assert properties.total_memory == torch.jax.mem_get_info()[1] > 0
    assert torch.jax.get_device_capability("jax:0") == (properties.major, properties.minor)


def test_capabilities_of_other_platforms():
    from types import SimpleNamespace as Device

    from jaxtorch.device.properties import DeviceProperties

    common = {"id": 0, "process_index": 0}
    gpu = Device(
        device_kind="NVIDIA H100",
        platform="gpu",
        compute_capability="9.0",
        core_count=132,
        **common,
    )
    assert DeviceProperties.of(gpu, 0, 1).capability == (9, 0)
    assert DeviceProperties.of(gpu, 0, 1).multi_processor_count == 132
    for kind, generation in (("TPU v5 lite", 5), ("TPU v6e", 6), ("TPU7x", 7)):
        tpu = Device(device_kind=kind, platform="tpu", coords=[0, 1, 2], num_cores=1, **common)
        properties = DeviceProperties.of(tpu, 0, 1)
        assert properties.capability == (generation, 0)
        assert properties.coords == (0, 1, 2)


def test_placement():
    with torch.jax.device(0), torch.jax.device("jax"), torch.jax.device(None), torch.jax.device(-1):
        assert torch.ones(2, device="jax").sum() == 2
    torch.jax.set_device(torch.device("jax", 0))
    with pytest.raises(RuntimeError, match="invalid jax device index 1000"):
        torch.jax.set_device(1000)
    with pytest.raises(RuntimeError, match="invalid jax device index 1000"), torch.jax.device(1000):
        pass
    with pytest.raises(ValueError, match="Expected a jax device"):
        torch.jax.set_device("cpu")


class TestRandomNumbers:
    def draw(self):
        return torch.rand(3, device="jax").tolist()

    def test_seeds(self):
        torch.manual_seed(1)
        first = self.draw()
        assert self.draw() != first
        for seed in (torch.manual_seed, torch.jax.manual_seed, torch.jax.manual_seed_all):
            seed(1)
            assert torch.jax.initial_seed() == 1
            assert self.draw() == first
        assert torch.jax.seed() == torch.jax.initial_seed()
        assert self.draw() != first
        torch.jax.seed_all()
        torch.seed()

    def test_large_and_negative_seeds(self):
        for seed in (2**64 - 1, -1, -(2**63)):
            torch.manual_seed(seed)
            first = self.draw()
            torch.manual_seed(seed)
            assert self.draw() == first

    def test_states(self):
        torch.manual_seed(2)
        self.draw()
        state = torch.jax.get_rng_state()
        assert state.dtype == torch.uint8
        assert state.device.type == "cpu"
        first = self.draw()
        torch.jax.set_rng_state(state)
        assert self.draw() == first
        torch.jax.set_rng_state_all([state])
        assert self.draw() == first
        assert len(torch.jax.get_rng_state_all()) == 1
        with pytest.raises(RuntimeError, match="ByteTensor of 16 bytes"):
            torch.jax.set_rng_state(torch.zeros(4))

    @pytest.mark.parametrize(
        "options", [{}, {"device_type": "jax"}, {"device_type": "jax", "devices": [0]}]
    )
    def test_fork_rng(self, options):
        torch.manual_seed(3)
        with torch.random.fork_rng(**options):
            inside = self.draw()
            torch.manual_seed(4)
        assert self.draw() == inside

    def test_generators(self):
        def draw():
            return torch.randn(2, device="jax", generator=torch.Generator().manual_seed(5)).tolist()

        assert draw() == draw()
        generator = torch.Generator().manual_seed(5)
        first = torch.rand(2, device="jax", generator=generator)
        assert not torch.equal(first, torch.rand(2, device="jax", generator=generator))

    def test_default_device_does_not_change_states(self):
        with torch.device("jax"):
            state = torch.jax.get_rng_state()
            torch.jax.set_rng_state(state)
            assert torch.get_rng_state().device.type == "cpu"


class TestMemory:
    def test_comes_back(self):
        torch.zeros(1000, device="jax").add_(1) + 1  # the scalar 1 stays on the device
        gc.collect()
        before = torch.jax.memory_allocated()
        x = torch.zeros(1000, device="jax")
        assert torch.jax.memory_allocated() == before + 4000
        y = x[:10]
        assert torch.jax.memory_allocated() == before + 4000
        x.add_(1)
        assert torch.jax.memory_allocated() == before + 4000
        z = x + 1
        assert torch.jax.memory_allocated() == before + 8000
        del x, z
        assert torch.jax.memory_allocated() == before + 4000
        del y
        assert torch.jax.memory_allocated() == before

    def test_peak(self):
        gc.collect()
        before = torch.jax.memory_allocated()  # what earlier tests keep
        torch.jax.reset_peak_memory_stats()
        x = torch.zeros(1_000_000, device="jax")
        del x
        assert torch.jax.max_memory_allocated() >= before + 4_000_000
        torch.jax.reset_peak_memory_stats()
        assert torch.jax.max_memory_allocated() < before + 4_000_000

    def test_exact_under_threads(self):
        for _ in range(
            4
        ):  # what finalizers of earlier tests' objects let go takes a collection more
            gc.collect()
        before = torch.jax.memory_allocated()

        def work():
            for _ in range(300):
                torch.zeros(10, device="jax") + 1

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert torch.jax.memory_allocated() == before

    def test_reports(self):
        kept = torch.zeros(1000, device="jax")
        stats = torch.jax.memory_stats()
        assert stats["allocated_bytes.all.current"] >= 4000
        assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
        assert torch.accelerator.memory_stats().keys() >= stats.keys()
        assert torch.accelerator.memory_allocated() == torch.jax.memory_allocated()
        assert torch.accelerator.max_memory_allocated() == torch.jax.max_memory_allocated()
        assert torch.accelerator.memory_reserved() == torch.jax.memory_reserved()
        assert torch.jax.max_memory_reserved() >= torch.jax.memory_reserved() > 0
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free < total
        assert "held by tensors" in torch.jax.memory_summary()
        torch.accelerator.reset_peak_memory_stats()
        torch.accelerator.reset_accumulated_memory_stats()
        torch.accelerator.empty_cache()
        del kept

    def test_empty_cache_collects_cycles(self):
        gc.collect()
        before = torch.jax.memory_allocated()
        cycle = [torch.zeros(100, device="jax")]
        cycle.append(cycle)
        del cycle
        torch.jax.empty_cache()
        assert torch.jax.memory_allocated() == before


class TestStreamsAndEvents:
    def test_events_measure_work(self):
        x = torch.ones(600, 600, device="jax") / 600
        x @ x
        start, end, late = (torch.jax.Event(enable_timing=True) for _ in range(3))
        start.record()
        for _ in range(30):
            x = x @ x
        end.record()
        late.record(torch.jax.current_stream())
        late.synchronize()
        assert start.query()
        assert end.query()
        assert start.elapsed_time(end) > 0
        assert start.elapsed_time(late) >= start.elapsed_time(end)
        assert end.elapsed_time(start) < 0
        assert isinstance(start, torch.Event)

    def test_events_without_timing(self):
        event = torch.jax.Event()
        assert event.query()
        event.synchronize()
        torch.ones(3, device="jax") + 1
        event.record()
        event.synchronize()
        assert event.query()
        with pytest.raises(RuntimeError, match="enable_timing"):
            event.elapsed_time(event)
        timed = torch.jax.Event(enable_timing=True)
        with pytest.raises(RuntimeError, match="recorded"):
            timed.elapsed_time(timed)
        with pytest.raises(RuntimeError, match="interprocess"):
            torch.jax.Event(interprocess=True)

    def test_an_event_survives_donation(self):
        x = torch.ones(400, 400, dtype=torch.float64, device="jax")
        for _ in range(5):
            x = x @ x / 400
            event = torch.jax.Event(enable_timing=True)
            event.record()
            x.add_(1)
        event.synchronize()
        assert event.query()
        expected = torch.ones(400, 400, dtype=torch.float64)
        for _ in range(5):
            expected = expected @ expected / 400 + 1
        torch.testing.assert_close(x.cpu(), expected)

    def test_streams(self):
        stream = torch.jax.Stream()
        assert isinstance(stream, torch.Stream)
        with torch.jax.stream(stream):
            x = torch.ones(3, device="jax") + 1
        stream.wait_stream(torch.jax.default_stream())
        torch.jax.current_stream().wait_event(stream.record_event())
        x.record_stream(stream)
        stream.synchronize()
        assert stream.query()
        torch.jax.set_stream(stream)
        torch.accelerator.set_stream(stream)
        assert torch.accelerator.current_stream().device.type == "jax"
        with stream:
            assert x.sum() == 6

    def test_synchronize(self):
        x = torch.ones(500, 500, device="jax")
        for _ in range(10):
            x = x @ x / 500
        torch.jax.synchronize()
        assert x.untyped_storage().buffer.array.is_ready()


@pytest.mark.parametrize(
    "ask",
    ["get_device_properties", "get_device_name", "memory_allocated", "memory_stats", "set_device"],
)
def test_a_device_that_jax_has_not(ask: str) -> None:
    with pytest.raises(RuntimeError, match="invalid jax device index 400"):
        getattr(torch.jax, ask)(400)
