"""What each of several processes checks: the parts of tensors, reading them, and training as one process does."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from itertools import islice

import jax
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import jaxtorch

Tensor = torch.Tensor

jaxtorch.distributed.initialize()
jaxtorch.distributed.initialize()  # does nothing
RANK, SIZE = jaxtorch.distributed.rank(), jaxtorch.distributed.world_size()
MESH = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
STEPS, BATCH = 20, 16
PARTS = torch.full((2, 3), float(RANK))  # of a tensor with two rows in each process
WHOLE = torch.arange(float(SIZE)).repeat_interleave(2)[:, None].expand(-1, 3).contiguous()

READS: dict[str, Callable[[Tensor], object]] = {
    "an element": lambda x: x[0, 0].item(),
    "a transposed view": lambda x: x.T.cpu(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: np.asarray(x),
    "bool": lambda x: bool(x[0, 0]),
    "save": lambda x: torch.save(x, io.BytesIO()),
    "pickle": lambda x: pickle.dumps(x),
    "storage": lambda x: x.untyped_storage().cpu(),
}


def placed(tensor: Tensor, spec: P) -> Tensor:
    """Values that every process has, over the mesh."""
    array = jax.device_put(tensor.detach().numpy(), NamedSharding(MESH, spec))
    return jaxtorch.to_torch(array, device="jax").requires_grad_(tensor.requires_grad)


def check_parts() -> None:
    """`from_local` joins what `gather` gives back, in every dtype."""
    x = jaxtorch.from_local(PARTS, P("data"), MESH)
    assert torch.equal(jaxtorch.gather(x), WHOLE)
    assert torch.equal(jaxtorch.gather(x.T), WHOLE.T)
    with jax.set_mesh(MESH):
        by_default = jaxtorch.from_local({"x": PARTS.to("jax")})["x"]
    assert torch.equal(jaxtorch.gather(by_default), WHOLE)
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
        part = PARTS.to(dtype)
        whole = jaxtorch.gather(jaxtorch.from_local(part, P("data"), MESH))
        assert whole.dtype == dtype
        assert torch.equal(whole, WHOLE.to(dtype))
    tied = jaxtorch.gather([x, x, 3])
    assert tied[0] is tied[1]
    module = nn.Linear(4, 4)
    for name, parameter in module.named_parameters():
        setattr(module, name, nn.Parameter(placed(parameter, P("data"))))
    for name, gathered in jaxtorch.gather(module.state_dict()).items():
        assert torch.equal(gathered, nn.Module.get_parameter(ORIGINAL, name).detach())


torch.manual_seed(0)
ORIGINAL = nn.Linear(4, 4)
torch.manual_seed(0)


def check_reads() -> None:
    """A tensor over all processes cannot be read by one of them; a replicated one can."""
    x = jaxtorch.from_local(PARTS, P("data"), MESH)
    if RANK == 0:  # it must not wait for the others
        for name, read in READS.items():
            with pytest.raises(RuntimeError, match=r"gather\(x\) in every process") as raised:
                read(x)
            assert "\n" not in str(raised.value), name
        for text in (repr(x), str(x), f"{x}", repr(nn.Parameter(x)), repr(x.T), repr([x])):
            assert "sharding=P('data',)" in text
            assert "jaxtorch.gather(x)" in text
    values = torch.arange(6.0).reshape(2, 3)
    full = placed(values, P())
    for name, read in READS.items():
        if name not in ("save", "pickle", "storage"):
            np.testing.assert_array_equal(
                np.asarray(read(full)), np.asarray(read(values)), err_msg=name
            )
    assert repr(full) == repr(values)[:-1] + ", device='jax:0')"
    assert torch.equal(pickle.loads(pickle.dumps(full)).cpu(), values)
    assert (x.sum() > 0).item() is True
    assert f"{x.sum():.1f}" == f"{WHOLE.sum():.1f}"
    assert torch.equal(jaxtorch.gather(copy.deepcopy(x)), WHOLE)


def check_whole_values() -> None:
    """Values that each process has whole, moved over all of them by hand and by an operator, in every width."""
    for dtype in (torch.float64, torch.int64, torch.complex128, torch.float32, torch.int8):
        values = torch.arange(2.0 * SIZE).to(dtype)[:, None] + 2**6
        if dtype in (torch.float64, torch.int64):
            values = values + (2**40 + 1)  # 32 bits have no such number
        for spec in (P("data"), P()):
            x = jaxtorch.shard(values, NamedSharding(MESH, spec))
            assert x.dtype == dtype
            assert torch.equal(jaxtorch.gather(x), values)
            added = x + values.to("jax")
            assert added.dtype == dtype
            assert torch.equal(jaxtorch.gather(added), values + values)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(STEPS * BATCH, 8, generator=generator),
        torch.randn(STEPS * BATCH, 4, generator=generator),
    )


def batches() -> Iterator[list[Tensor]]:
    """The part of each batch that torch's sampler gives this process."""
    own = DistributedSampler(data(), num_replicas=SIZE, rank=RANK, shuffle=False)
    return iter(DataLoader(data(), batch_size=BATCH // SIZE, sampler=own, drop_last=True))


def losses_of_one_process() -> list[float]:
    """The oracle: the whole batches on torch's CPU."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    found = []
    # The sampler deals the elements out in turn, so a step of all processes has a whole batch.
    for x, y in DataLoader(data(), batch_size=BATCH):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def check_training(spec: P, captured: bool) -> None:
    """Losses over 20 steps are those of one process."""
    net = model().to("jax")
    for parameter in net.parameters():
        own = spec if parameter.shape[0] % jax.device_count() == 0 else P()
        parameter.data = placed(parameter.detach().cpu(), own)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jaxtorch.jit(step) if captured else step
    found = [
        run(*jaxtorch.from_local(batch, P("data"), MESH)).item()
        for batch in islice(batches(), STEPS)
    ]
    torch.testing.assert_close(found, losses_of_one_process(), rtol=1e-5, atol=1e-5)
    for parameter in net.parameters():
        sharding = jaxtorch.to_jax(parameter.detach()).sharding
        own = spec if parameter.shape[0] % jax.device_count() == 0 else P()
        assert sharding.is_equivalent_to(NamedSharding(MESH, own), parameter.dim())


def check_random_numbers(capture: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
    """Captured code draws what eager code draws, and eager draws after it go on as without it."""
    x = jaxtorch.from_local(torch.ones(2, 64), P("data"), MESH)

    def draw(x: Tensor) -> Tensor:
        return nn.functional.dropout(x) + torch.rand(x.shape, device="jax")

    def drawn(draw: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(3)
        results = [draw(x), draw(x), torch.rand(5, device="jax"), nn.functional.dropout(x)]
        return [jaxtorch.gather(result) for result in results]

    eager = drawn(draw)
    assert not torch.equal(eager[0], eager[1])
    for result, expected in zip(drawn(capture(draw)), eager, strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


if __name__ == "__main__":
    check_parts()
    check_reads()
    check_whole_values()
    check_random_numbers(jaxtorch.pure)
    check_random_numbers(jaxtorch.jit)
    jaxtorch.distributed.barrier()
    check_training(P() if SIZE == 2 else P("data"), captured=False)
    check_training(P("data") if SIZE == 2 else P(), captured=True)
    print("checked", flush=True)
    jaxtorch.distributed.shutdown()
