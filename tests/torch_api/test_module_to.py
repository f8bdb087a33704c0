"""`Module.to("jax")` and back: parameters stay the same objects, as on cuda."""

import copy
import warnings

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.second(self.first(x)) * self.scale)


MOVES = {
    "to": lambda m: m.to("jax"),
    "to with an index": lambda m: m.to(torch.device("jax", 0)),
    "jax": lambda m: m.jax(),
    "to with a dtype": lambda m: m.to("jax", torch.float64),
    "non_blocking": lambda m: m.to("jax", non_blocking=True),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_parameters_stay_the_same_objects_and_tied(move):
    model = Tied()
    before = dict(model.named_parameters())
    assert move(model) is model
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        assert type(parameter) is nn.Parameter
        assert parameter.is_leaf
        assert parameter.is_jax
        assert parameter.requires_grad
    assert model.second.weight is model.first.weight
    assert model.scale.is_jax
    assert model.norm.num_batches_tracked.is_jax
    model.cpu()
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        assert parameter.device.type == "cpu"


def test_an_optimizer_made_before_the_move_goes_on():
    torch.manual_seed(0)
    model = Tied()
    reference = copy.deepcopy(model)
    x = torch.randn(8, 3)
    runs = []
    for m, device in ((model, "jax"), (reference, "cpu")):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        m.to(device)
        for _ in range(3):
            optimizer.zero_grad()
            m(x.to(device)).square().sum().backward()
            optimizer.step()
        runs.append([p.detach().cpu() for p in m.parameters()])
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_gradients_move_with_their_parameters():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    grad = model.weight.grad.clone()
    model.jax()
    assert model.weight.grad.is_jax
    # A backward on the other device adds to it: the accumulator was created again.
    model(torch.ones(1, 3, device="jax")).sum().backward()
    assert torch.equal(model.weight.grad.cpu(), 2 * grad)
    model.cpu()
    model(torch.ones(1, 3)).sum().backward()
    assert torch.equal(model.weight.grad, 3 * grad)


def test_data_may_be_set_across_devices():
    x = torch.ones(3, requires_grad=True)
    x.data = torch.zeros(2, 2, device="jax")
    assert x.is_jax
    assert x.shape == (2, 2)
    (x + 1).sum().backward()
    assert x.grad.is_jax
    y = torch.zeros(3, device="jax")
    y.data = torch.arange(3)
    assert y.tolist() == [0, 1, 2]
    assert y.device.type == "cpu"


def test_sparse_data_is_still_refused():
    x = torch.ones(3, device="jax")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.ones(3).to_sparse()


def test_other_conversions_are_torchs_own():
    model = Tied()
    weight = model.first.weight
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.double().float().to("meta")
    assert model.first.weight is not weight  # torch makes new Parameters for meta
    assert model.first.weight.is_meta


def test_to_empty_and_construction_on_the_device():
    model = Tied().to_empty(device="jax")
    assert all(p.is_jax for p in model.parameters())
    assert nn.Linear(3, 3, device="jax").weight.is_jax
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    state = {"weight": torch.ones(3, 3, device="jax"), "bias": torch.zeros(3, device="jax")}
    model.load_state_dict(state, assign=True)
    assert model.weight.is_jax


def test_deepcopy_keeps_weights_tied_and_apart_from_the_original():
    model = Tied().jax()
    twin = copy.deepcopy(model)
    assert twin.first.weight is twin.second.weight
    assert twin.first.weight is not model.first.weight
    with torch.no_grad():
        twin.first.weight.zero_()
    assert model.first.weight.abs().sum() > 0


def test_state_dict_across_devices():
    ours, theirs = Tied().jax(), Tied()
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs.first.weight, ours.first.weight.cpu())
    ours.load_state_dict(theirs.state_dict())
    assert ours.first.weight.is_jax


def test_half_and_bfloat16_on_the_device():
    model = nn.Linear(3, 3).jax()
    weight = model.weight
    assert model.bfloat16().weight is weight
    assert model.weight.dtype == torch.bfloat16
    assert model.half().float().weight is weight


def test_packed_sequences():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert not packed.is_jax
    moved = packed.jax()
    assert moved.is_jax
    assert moved.data.is_jax
    assert moved.batch_sizes.device.type == "cpu"
    assert moved.cpu().data.device.type == "cpu"


def test_parametrizations_and_weight_norm():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).jax()
    model(torch.ones(1, 3, device="jax")).sum().backward()
    assert model.parametrizations.weight.original0.grad.is_jax


def test_foreign_devices_get_clear_errors():
    with pytest.raises(RuntimeError, match=r"torch sees one jax device, jax:0"):
        torch.ones(2).to("jax:1")
    with pytest.raises(RuntimeError, match=r"torch sees one jax device, jax:0"):
        torch.ones(2, device="jax:3")
    with pytest.raises(RuntimeError, match=r"torch sees one jax device, jax:0"):
        nn.Linear(2, 2).to("jax:1")
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(2, device="jax") + torch.ones(2)
    with pytest.raises(RuntimeError, match="on the same device"):
        nn.Linear(2, 2).jax()(torch.ones(1, 2))
