"""`%load_ext`, `%reload_ext`, `%unload_ext`: what they bring, and that they leave nothing behind."""

from __future__ import annotations

from typing import Any

import torch


def footprint(shell: Any) -> dict[str, Any]:
    """Everything of a shell and of torch that the extension may touch."""
    manager = shell.magics_manager
    return {
        "magics": {kind: set(names) for kind, names in manager.magics.items()},
        "registry": set(manager.registry),
        "configurables": len(shell.configurables),
        "matchers": [f"{m.__module__}.{m.__qualname__}" for m in shell.Completer.custom_matchers],
        "hooks": {
            name: len(list(hooks))
            for name, hooks in shell.hooks.items()
            if hasattr(hooks, "__iter__")
        },
        "events": {name: len(hooks) for name, hooks in shell.events.callbacks.items()},
        "namespace": set(shell.user_ns),
        "load": torch.serialization._get_restore_location,
        "default": torch.get_default_device(),
        "modes": len(torch.overrides._get_current_function_mode_stack()),
    }


def test_unload_leaves_nothing_behind(bare: Any) -> None:
    bare.run_line_magic("unload_ext", "jaxtorch")  # IPython loads its own magics at their first use
    before = footprint(bare)
    for _ in range(2):
        bare.run_line_magic("load_ext", "jaxtorch")
        bare.run_line_magic("jax", "on")
        bare.run_line_magic("unload_ext", "jaxtorch")
        assert footprint(bare) == before


def test_reload_brings_everything_once(shell: Any) -> None:
    before = footprint(shell)
    shell.run_line_magic("jax", "on")
    shell.run_line_magic("reload_ext", "jaxtorch")
    after = footprint(shell)
    assert len(after.pop("matchers")) == len(before.pop("matchers")) == 1
    assert after == before


def test_loading_twice_is_loading_once(shell: Any) -> None:
    import jaxtorch

    before = footprint(shell)
    jaxtorch.load_ipython_extension(shell)
    assert footprint(shell) == before


def test_another_extension_keeps_its_matchers(shell: Any) -> None:
    def other(context: Any) -> Any:
        return {"completions": []}

    shell.Completer.custom_matchers.append(other)
    shell.run_line_magic("unload_ext", "jaxtorch")
    assert shell.Completer.custom_matchers == [other]
