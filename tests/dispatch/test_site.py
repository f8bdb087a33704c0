"""Whose code a file is: the user's, Python's, an installed library's."""

from __future__ import annotations

import functools
import os
import sysconfig

import pytest
import torch

from jaxtorch.programs import site

_PURE = sysconfig.get_path("purelib")

INSTALLED = {
    "the environment's": (os.path.join(_PURE, "lib", "a.py"), "lib"),
    "one file": (os.path.join(_PURE, "six.py"), "six"),
    "Colab's": ("/usr/local/lib/python3.12/dist-packages/transformers/modeling_utils.py", "transformers"),
    "Debian's": ("/usr/lib/python3/dist-packages/numpy/__init__.py", "numpy"),
    "the user's site": ("/home/me/.local/lib/python3.12/site-packages/lib/a.py", "lib"),
    "another environment's": ("/home/me/work/.venv/lib/python3.12/site-packages/lib/sub/a.py", "lib"),
    "on Windows": ("C:\\Python312\\Lib\\site-packages\\lib\\a.py", "lib"),
    "vendored": ("/a/site-packages/pip/_vendor/site-packages/lib/a.py", "lib"),
    "torch": (torch.__file__, "torch"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "name"), INSTALLED.values(), ids=INSTALLED)
def test_an_installed_library_is_not_the_users(file: str, name: str) -> None:
    assert site.package_of(file) == name
    assert not site.is_user_file(file)
    assert not site.is_stdlib_file(file)


@pytest.mark.parametrize(
    "file", [functools.__file__, os.path.join(sysconfig.get_path("stdlib"), "json", "decoder.py")]
)
def test_the_standard_library(file: str) -> None:
    assert site.is_stdlib_file(file)
    assert not site.is_user_file(file)
    assert site.package_of(file) is None


@pytest.mark.parametrize(
    "file",
    [
        __file__,
        "/home/me/train.py",
        "/tmp/ipykernel_12/34.py",
        "<ipython-input-1-2>",
        "<string>",
        "/home/me/dist/a.py",
    ],
)
def test_the_users(file: str) -> None:
    assert site.is_user_file(file)
    assert site.package_of(file) is None


def test_the_projects_own_code_is_not_the_users() -> None:
    assert not site.is_user_file(site.__file__)
