"""A file of device-generic tests as PyTorch's are: one test for each thing that their framework asks of a device.

`test_torch_suite.py` runs it by the command. It is not a test file of this project: pytest does not collect its name.
"""

import os
import time

import pytest
import torch
from torch.testing._internal.common_device_type import (
    deviceCountAtLeast,
    dtypes,
    dtypesIfPRIVATEUSE1,
    expectedFailure,
    instantiate_device_type_tests,
    onlyAccelerator,
    onlyCPU,
    onlyCUDA,
    onlyNativeDeviceTypes,
    onlyPRIVATEUSE1,
    ops,
    skipMeta,
    skipPRIVATEUSE1,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests

SOME = [op for op in op_db if op.name in ("add", "cumsum")]


class TestFramework(TestCase):
    """Tests that the framework makes for each device."""

    def test_name_of_the_device(self, device):
        assert device in ("cpu", "jax:0")
        assert torch.ones(3, device=device).device.type == self.device_type

    @dtypes(torch.float32, torch.int64)
    @parametrize("size", [0, 3])
    def test_parametrized(self, device, dtype, size):
        x = torch.ones(size, device=device, dtype=dtype)
        assert torch.equal((x + x).cpu(), 2 * x.cpu())

    @dtypesIfPRIVATEUSE1(torch.float32)
    @dtypes(torch.float32, torch.float64)
    def test_dtypes_of_the_device(self, device, dtype):
        pass

    @ops(SOME, allowed_dtypes=(torch.float32,))
    def test_operators(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            assert op(sample.input, *sample.args, **sample.kwargs).device.type == self.device_type

    @deviceCountAtLeast(1)
    def test_all_devices(self, devices):
        assert devices in (["cpu"], ["jax:0"])

    @deviceCountAtLeast(2)
    def test_two_devices(self, devices):
        raise AssertionError

    @onlyNativeDeviceTypes
    @skipMeta
    def test_native(self, device):
        pass

    @onlyAccelerator
    def test_accelerator(self, device):
        assert self.device_type == "jax"

    @onlyPRIVATEUSE1
    def test_privateuse1(self, device):
        assert self.device_type == "jax"

    @skipPRIVATEUSE1
    def test_not_privateuse1(self, device):
        assert self.device_type == "cpu"

    @onlyCPU
    def test_cpu(self, device):
        assert self.device_type == "cpu"

    @onlyCUDA
    def test_cuda(self, device):
        raise AssertionError

    @expectedFailure("jax")
    def test_expected_failure(self, device):
        assert self.device_type == "cpu"

    def test_index_out_of_range(self, device):
        with pytest.raises(IndexError):
            torch.ones(3, device=device)[torch.tensor([5], device=device)]


class TestOutcomes(TestCase):
    """Tests that fail, in each way."""

    def test_fails_on_jax(self, device):
        assert self.device_type == "cpu"

    def test_fails_on_both(self, device):
        raise ValueError

    def test_ends_the_process_on_jax(self, device):
        if self.device_type == "jax":
            os._exit(3)

    def test_hangs_on_jax(self, device):
        if self.device_type == "jax":
            time.sleep(60)

    def test_runs_after_those(self, device):
        pass


class TestOfNoDevice(TestCase):
    """A class that is for no device is left out."""

    def test_left_out(self):
        raise AssertionError


instantiate_device_type_tests(TestFramework, globals())
instantiate_device_type_tests(TestOutcomes, globals(), except_for="meta")

if __name__ == "__main__":
    run_tests()
