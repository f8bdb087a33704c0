"""Saving, loading, pickling and copying tensors of the device."""

import copy
import io
import multiprocessing
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.uint32,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]


def save(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def load(content, **options):
    return torch.load(io.BytesIO(content), **options)


def sample(dtype=torch.float32):
    return torch.arange(6).reshape(2, 3).to(dtype)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype, new_format):
    if not new_format and dtype in torch.storage._new_dtypes():
        pytest.skip("torch's old format has no such dtype")
    host = sample(dtype)
    content = save(host.jax(), _use_new_zipfile_serialization=new_format)
    back = load(content)
    assert back.is_jax
    assert back.dtype == dtype
    assert torch.equal(back.cpu().view(torch.uint8), host.view(torch.uint8))


MAPS = {
    "a string": "cpu",
    "a device": torch.device("cpu"),
    "a dict": {"jax:0": "cpu"},
    "a function of storages": lambda storage, location: storage,
    "a function of locations": lambda storage, location: storage if location == "jax:0" else None,
}


@pytest.mark.parametrize("map_location", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("weights_only", [True, False])
def test_to_the_cpu(map_location, weights_only):
    content = save({"x": sample().jax(), "n": 3})
    back = load(content, map_location=map_location, weights_only=weights_only)
    assert back["x"].device.type == "cpu"
    assert torch.equal(back["x"], sample())


BACK = {
    "a string": "jax",
    "a string with index": "jax:0",
    "a device": torch.device("jax"),
    "a dict": {"cpu": "jax"},
    "a function": lambda storage, location: storage.jax(),
}


@pytest.mark.parametrize("map_location", BACK.values(), ids=BACK)
def test_from_the_cpu(map_location):
    back = load(save({"x": sample()}), map_location=map_location)["x"]
    assert back.is_jax
    assert torch.equal(back.cpu(), sample())
    assert (back + 1).sum() == 21


def test_a_missing_device_index_is_an_error():
    with pytest.raises(RuntimeError, match="device 1"):
        load(save(sample()), map_location="jax:1")


def test_loaded_arrays_have_the_tensors_dtype():
    """Not bytes, which every operator would have to reinterpret."""
    back = load(save(sample().jax()))
    buffer = back.untyped_storage().buffer
    assert buffer.array.dtype == "float32"
    assert buffer.array.shape == (2, 3)


@pytest.mark.parametrize("weights_only", [True, False])
def test_views_share_their_storage_after_a_load(weights_only):
    base = sample().jax() + 1
    back = load(save({"base": base, "row": base[1], "t": base.t()}), weights_only=weights_only)
    back["row"].zero_()
    assert back["base"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert back["t"].tolist() == [[1, 0], [2, 0], [3, 0]]
    assert base.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_parameters_requires_grad_and_memory_format():
    parameter = nn.Parameter(torch.ones(2, 3, 4, 5, device="jax"))
    back = load(save(parameter))
    assert isinstance(back, nn.Parameter)
    assert back.requires_grad
    image = torch.ones(2, 3, 4, 5, device="jax").to(memory_format=torch.channels_last)
    assert load(save(image)).is_contiguous(memory_format=torch.channels_last)


def test_empty_and_zero_dimensional_tensors():
    for tensor in (torch.empty(0, 3, device="jax"), torch.tensor(2.5, device="jax")):
        back = load(save(tensor))
        assert back.shape == tensor.shape
        assert torch.equal(back.cpu(), tensor.cpu())


def test_a_checkpoint_with_an_optimizer_goes_on_anywhere():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).jax()
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x = torch.randn(5, 3)

    def step(model, optimizer, device):
        optimizer.zero_grad()
        model(x.to(device)).square().sum().backward()
        optimizer.step()

    step(model, optimizer, "jax")
    scheduler.step()
    content = save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer, "jax")
    for device in ("cpu", "jax"):
        state = load(content, map_location=device)
        twin = copy.deepcopy(model).to(device)
        twin.load_state_dict(state["model"])
        other = torch.optim.Adam(twin.parameters(), lr=1.0)
        other.load_state_dict(state["optimizer"])
        step(twin, other, device)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs.cpu())


def test_whole_modules_and_tied_weights():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).jax()
    model[1].weight = model[0].weight
    back = load(save(model), weights_only=False)
    assert back[0].weight is back[1].weight
    state = load(save(model.state_dict()))
    state["0.weight"].zero_()
    assert state["1.weight"].abs().sum() == 0


def test_pickle_and_copy():
    tensor = sample().jax() + 1
    for back in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        assert torch.equal(back.cpu(), tensor.cpu())
        back.zero_()
        assert tensor.sum() == 21
    copy.copy(tensor)[0, 0] = 7
    assert tensor[0, 0] == 7
    leaf = tensor.clone().requires_grad_()
    leaf.sum().backward()
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad
    assert torch.equal(twin.grad.cpu(), torch.ones(2, 3))
    base = copy.deepcopy({"base": tensor, "row": tensor[0]})
    base["row"].zero_()
    assert base["base"][0].sum() == 0
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(leaf * 2)


def test_safetensors(tmp_path):
    file = tmp_path / "x.safetensors"
    tensors = {"a": sample().jax(), "sum": sample().jax() + 1, "half": sample(torch.bfloat16).jax()}
    safetensors.torch.save_file(tensors, file)
    back = safetensors.torch.load_file(file)
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor.cpu())
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).jax()
    model[1].weight = model[0].weight
    safetensors.torch.save_model(model, str(file))
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).jax()
    other[1].weight = other[0].weight
    safetensors.torch.load_model(other, str(file))
    assert torch.equal(other[1].weight.cpu(), model[0].weight.cpu())


def test_storages():
    tensor = sample().jax() + 1
    storage = tensor.untyped_storage()
    assert storage.is_jax
    assert storage.nbytes() == storage.size() == len(storage) == 24
    assert storage.tolist() == sample().add(1).untyped_storage().tolist()
    assert storage.cpu().device.type == "cpu"
    assert storage.cpu().jax().tolist() == storage.tolist()
    assert storage[3] == 63
    twin = storage.clone()
    twin[3] = 0
    assert storage[3] == 63
    made = torch.UntypedStorage(10, device="jax")
    assert made.tolist() == [0] * 10
    floats = torch.empty(0, device="jax").set_(torch.UntypedStorage(8, device="jax"))
    assert floats.tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="fixed size"):
        storage.resize_(100)
    assert torch.UntypedStorage([1, 2, 3]).tolist() == [1, 2, 3]
    assert torch.UntypedStorage(2).nbytes() == 2
    assert torch.UntypedStorage(2, device="meta").device.type == "meta"


def _double(inbox, outbox):
    outbox.put(inbox.get().detach() * 2)


def test_through_a_queue_to_a_spawned_process():
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_double, args=(inbox, outbox))
    process.start()
    inbox.put(nn.Parameter(sample().jax()))
    result = outbox.get(timeout=120)
    process.join(60)
    assert result.tolist() == (sample() * 2).tolist()
    assert process.exitcode == 0
    assert multiprocessing.active_children() == []
