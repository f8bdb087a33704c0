"""`DataLoader` beside the device: shuffling, workers forked and spawned, pinned memory, processes after a fork."""

import io
import os
import pickle
import signal
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import jaxtorch


class Squares(Dataset):
    """Items made by the worker, with the worker's own default device."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        made = torch.tensor([float(i)])
        assert made.device.type == "cpu"
        return made**2 + torch.zeros(1), torch.rand(1)


@pytest.fixture
def default_jax():
    torch.set_default_device("jax")
    torch.ones(2) + 1  # jax runs, its threads too
    yield
    torch.set_default_device(None)


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Python's own from 3.12 on, at every fork of a process with threads, jax or not.
        warnings.filterwarnings(
            "ignore", ".*use of fork.*may lead to deadlocks", DeprecationWarning
        )
        yield


def values(loader):
    return sorted(v for batch, _ in loader for v in batch.flatten().tolist())


EXPECTED = [float(i) ** 2 for i in range(12)]


def test_without_workers(default_jax, no_warnings):
    data = TensorDataset(torch.arange(12.0)[:, None] ** 2, torch.zeros(12))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    first = [batch for batch, _ in loader]
    assert all(batch.is_jax for batch in first)
    assert values(loader) == EXPECTED
    one, two = random_split(data, [8, 4])
    assert len(one) + len(two) == 12


# "fork" by name: from Python 3.14 on it is not the default.
@pytest.mark.timeout(120)
@pytest.mark.parametrize("pin_memory", [False, True])
def test_forked_workers(default_jax, no_warnings, pin_memory):
    torch.manual_seed(0)
    loader = DataLoader(
        Squares(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        pin_memory=pin_memory,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        assert values(loader) == EXPECTED
    batch, _ = next(iter(loader))
    assert batch.device.type == "cpu"
    assert batch.is_pinned() == pin_memory
    assert batch.jax(non_blocking=True).is_jax
    assert torch.ones(1).is_jax  # the parent's default device is as it was


@pytest.mark.timeout(120)
def test_forked_workers_inside_a_device_block(no_warnings):
    with torch.device("jax"):
        torch.ones(2) + 1
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context="fork")
        assert values(loader) == EXPECTED
        assert torch.ones(1).is_jax


@pytest.mark.timeout(300)
def test_spawned_workers(default_jax, no_warnings):
    loader = DataLoader(
        Squares(), batch_size=6, shuffle=True, num_workers=1, multiprocessing_context="spawn"
    )
    assert values(loader) == EXPECTED


@pytest.mark.timeout(120)
def test_the_same_seed_gives_the_same_order(default_jax):
    def order(workers):
        torch.manual_seed(3)
        return [
            b.flatten().tolist()
            for b, _ in DataLoader(Squares(), 3, shuffle=True, num_workers=workers)
        ]

    assert order(0 if False else 2) == order(2)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(Squares(), 3, shuffle=True, generator=generator, num_workers=1)
    assert values(loader) == EXPECTED


class OnTheDevice(Dataset):
    def __init__(self, how):
        self.how = how
        self.tensor = torch.arange(4.0, device="jax")
        self.sum = self.tensor + 1

    def __len__(self):
        return 4

    def __getitem__(self, i):
        if self.how == "compute":
            return self.tensor[i] + 1
        if self.how == "move":
            return torch.ones(1).to("jax")
        if self.how == "make":
            return torch.ones(1, device="jax")
        if self.how == "read":
            return self.tensor[i].item()
        if self.how == "return":
            return self.tensor[i]
        return torch.jax.get_device_name()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["compute", "move", "make", "read", "return", "name"])
def test_the_device_in_a_forked_worker_is_a_clear_error(how):
    loader = DataLoader(
        OnTheDevice(how), batch_size=2, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(RuntimeError, match="Cannot use the jax device in a forked process"):
        list(loader)
    assert (torch.ones(2, device="jax") + 1).sum() == 4


def child(work, seconds=0):
    """Run `work` in a forked child, which ends after that many seconds at the latest; returns its text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.timeout(60)
def test_a_forked_child_works_on_the_cpu(default_jax, no_warnings):
    def work():
        # No backward: torch itself refuses it in a child once a backward has run beside any accelerator.
        torch.manual_seed(1)
        x = torch.ones(3) * 2
        return x.tolist(), torch.jax.is_available(), torch.jax._is_in_bad_fork()

    assert child(work) == "([2.0, 2.0, 2.0], False, True)"


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_warnings_filters_are_back_after_a_fork():
    torch.ones(1, device="jax") + 1
    before = list(warnings.filters)
    assert child(lambda: warnings.filters == before) == "True"
    assert warnings.filters == before


def pending():
    """A tensor that is not computed yet, for a second at least."""
    x = torch.ones(1000, 1000, device="jax")
    for _ in range(30):
        x = (x @ x) * 1e-3
    array = jaxtorch.to_jax(x)
    assert not array.is_ready()
    return x, array


WAITS = {
    "save": lambda x, array: torch.save(x, io.BytesIO()),
    "save of a module": lambda x, array: torch.save({"w": nn.Parameter(x)}, io.BytesIO()),
    "pickle": lambda x, array: pickle.dumps(x),
    "bytes of its storage": lambda x, array: x.untyped_storage().cpu(),
    "an element of its storage": lambda x, array: x.untyped_storage()[0],
    "to the CPU": lambda x, array: x.cpu(),
    "item": lambda x, array: x[0, 0].item(),
    "repr": lambda x, array: repr(x),
    "numpy": lambda x, array: np.asarray(x),
    "dlpack": lambda x, array: x.__dlpack__(),
    "to_jax": lambda x, array: jaxtorch.to_jax(x),
    "to_torch": lambda x, array: jaxtorch.to_torch(array, device="cpu"),
    "synchronize": lambda x, array: torch.jax.synchronize(),
    "accelerator": lambda x, array: torch.accelerator.synchronize(),
    "stream": lambda x, array: torch.jax.current_stream().synchronize(),
    "nonzero": lambda x, array: x.nonzero(),
    "equal": lambda x, array: x.equal(x),
    "copy_": lambda x, array: torch.empty(1000, 1000, device="cpu").copy_(x),
}


@pytest.mark.timeout(120)
def test_what_would_wait_for_ever_in_a_forked_child_is_a_clear_error():
    x, array = pending()

    def work():
        found = []
        for wait in WAITS.values():
            try:
                wait(x, array)
            except RuntimeError as error:
                found.append(str(error)[:44])
        return found

    expected = ["Cannot use the jax device in a forked process"[:44]] * len(WAITS)
    assert child(work, 60) == str(expected)
    assert array.block_until_ready().shape == (1000, 1000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("timed", [False, True])
def test_an_event_in_a_forked_child_is_a_clear_error(timed):
    event = torch.jax.Event(enable_timing=timed)
    x, _ = pending()
    event.record()
    assert child(event.synchronize, 60).startswith("RuntimeError: Cannot use the jax device")
    assert x.isfinite().all()
