"""What the private hooks of JAX do: a new version that changes one fails here, by name."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import compiler

from jaxtorch.base import jax_live, jax_private


def test_the_fast_call_of_a_compiled_program_takes_flat_arrays() -> None:
    x = jax.device_put(jnp.arange(3.0), jax.devices()[0])
    compiled = jax.jit(lambda a, b: (a + b, a * b)).lower(x, x).compile()
    call = jax_private.fast_call(compiled)
    assert call is not compiled, "jax has moved create_cpp_call: calls still work, 0.5 us slower"
    total, product = call(x, x)
    assert total.tolist() == [0.0, 2.0, 4.0]
    assert product.tolist() == [0.0, 1.0, 4.0]


def test_wide_programs_run_outside_x64() -> None:
    with jax.enable_x64(True):
        x = jax.device_put(jnp.arange(3, dtype=jnp.float64), jax.devices()[0])
        compiled = jax.jit(lambda a: a + 1).lower(x).compile()
    assert jax_private.fast_call(compiled)(x).dtype == jnp.float64


def test_a_donated_array_is_really_reused() -> None:
    x = jax.device_put(jnp.arange(1024.0), jax.devices()[0])
    compiled = jax.jit(lambda a: a + 1, donate_argnums=0).lower(x).compile()
    jax_private.fast_call(compiled)(x)
    assert x.is_deleted()


def test_a_checkpoint_within_a_checkpoint_keeps_what_it_says() -> None:
    def everything(*_: object, **__: object) -> bool:
        return True

    def block(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.sin(jnp.sin(x)))

    def residuals(policy: Any) -> int:
        def both(x: jax.Array) -> jax.Array:
            return jax.checkpoint(block)(jax.checkpoint(block)(x))

        outer = jax.checkpoint(both, policy=policy)
        return len(jax.tree.leaves(jax.vjp(outer, jnp.ones(3))[1]))

    assert residuals(everything) == 6, "jax asks inner policies by itself: the hook may go"
    jax_private.respect_checkpoints_within(everything)
    assert residuals(everything) == 2
    assert residuals(lambda *_, **__: True) == 6, "another policy is JAX's own business"


def test_a_checkpoint_under_our_policy_forgets_what_it_was_written_to_forget() -> None:
    """`respect_checkpoints_within`: JAX's own rule asks the outer policy alone, which keeps the inner sines."""

    def keep_all(primitive: Any, *_: Any, **__: Any) -> bool:
        return True

    def residuals(policy: Any) -> int:
        def inner(x: jax.Array) -> jax.Array:
            return jnp.sin(jnp.sin(jnp.sin(x)))

        def outer(x: jax.Array) -> jax.Array:
            return jax.checkpoint(inner)(x) * 2

        checkpointed = jax.checkpoint(outer, policy=policy, prevent_cse=False)
        # The leaves of a pullback are what the forward pass keeps.
        return len(jax.tree.leaves(jax.vjp(checkpointed, jnp.ones(3))[1]))

    before = residuals(keep_all)
    jax_private.respect_checkpoints_within(keep_all)
    assert before > 1
    assert residuals(keep_all) == 1  # the input


def test_a_serialized_module_is_printed() -> None:
    compiled = jax.jit(jnp.sin).lower(jnp.ones(3)).compile()
    (module,) = compiled.runtime_executable().hlo_modules()  # type: ignore[union-attr]  # XLA's executable
    text = jax_private.hlo_text(module.as_serialized_hlo_module_proto())
    assert text.startswith("HloModule jit_sin"), "hlo_text needs jaxlib's HloModule"
    assert "StackFrames" in text, (
        "XLA no longer prints the tables that insight/hlo/listing.py leaves out"
    )
    assert "sine(" in text


def test_what_is_traced_can_be_noted_with_the_frames_of_another_line() -> None:
    def frames_here() -> Any:
        return jax_private.stack()

    frames = frames_here()

    def traced(x: Any) -> Any:
        with jax_private.as_if_at(frames):
            y = jnp.sin(x)
        return jnp.cos(y)

    sine, cosine = jax.make_jaxpr(traced)(1.0).eqns
    functions = [
        {frame.function_name for frame in equation.source_info.traceback.frames}
        for equation in (sine, cosine)
    ]
    assert any("frames_here" in name for name in functions[0])
    assert not any("frames_here" in name for name in functions[1])
    assert any("traced" in name for name in functions[1])


def test_the_newest_executable_is_found_again_while_it_lives() -> None:
    @jax.jit
    def found_again(x: jax.Array) -> jax.Array:
        return x * 3

    found_again(jnp.ones((2, 5)))
    fingerprint, (aval,) = jax_live.newest_executable("found_again") or (None, [None])
    assert aval is not None
    assert (aval.shape, aval.dtype) == ((2, 5), jnp.float32)
    executable = jax_live.find_executable(fingerprint)
    assert executable is not None
    assert executable.memory_analysis().argument_size_in_bytes == 40
    assert executable.cost_analysis()["flops"] == 10
    assert b"found_again" in (jax_private.hlo_proto(executable) or b"")  # type: ignore[arg-type]
    for name in ("<lambda>", "ends_", "with <a> blank"):
        function = lambda x: x * 5  # noqa: E731
        function.__name__ = name
        jitted = jax.jit(function)
        jitted(jnp.ones((2, 5)))
        assert jax_live.newest_executable(name) is not None, name
    assert jax_live.newest_executable("no_such_function") is None
    assert jax_live.find_executable(b"none") is None


def test_a_listener_finds_the_jaxpr_that_is_lowered_and_its_trace_can_be_lowered_again() -> None:
    jaxprs: list[Any] = []

    def listen(event: str, _: float, **details: Any) -> None:
        if (
            event.endswith("jaxpr_to_mlir_module_duration")
            and "lowered_here" in details["fun_name"]
        ):
            jaxprs.append(jax_live.lowered_jaxpr())

    @jax.jit
    def lowered_here(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 17.25

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        lowered_here(jnp.ones((3, 2)))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    (jaxpr,) = jaxprs
    assert [e.primitive.name for e in jaxpr.eqns] == ["tanh", "mul"]
    assert weakref.ref(jaxpr)() is jaxpr, "insight/ keeps no more than that"
    assert jax_live.lowered_jaxpr() is None
    text = jax_live.LiveTrace(jaxpr, "lowered_here").lower().as_text(debug_info=True)
    expected = lowered_here.lower(jnp.ones((3, 2))).as_text()
    assert text.count("stablehlo.tanh") == expected.count("stablehlo.tanh") == 1
    assert "@jit_lowered_here" in text
    assert __file__ in text, "the lines are those of the trace"


def test_a_stack_says_what_jax_does_to_a_program() -> None:
    steps: list[Any] = []

    def listen(event: str, _: float, **details: Any) -> None:
        if event.endswith("jaxpr_to_mlir_module_duration"):
            steps.append(jax_live.step_of(sys._getframe()))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x - 23.75)(jnp.ones(5))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert "lowering" in steps
    assert jax_live.step_of(sys._getframe()) is None
    assert callable(compiler.compile_or_get_cached), "by this name a stack says that XLA compiles"


def test_a_program_compiled_anew_has_the_lines_of_its_own_lowering() -> None:
    def lowered(file: str) -> Any:
        names: dict[str, Any] = {}
        exec(compile("def twin(x):\n    return x * 7.5", file, "exec"), names)
        return jax.jit(names["twin"]).trace(jnp.ones(3)).lower()

    for file in ("first_twin.py", "second_twin.py"):
        proto = jax_private.hlo_proto(jax_private.compile_with_own_lines(lowered(file)))
        assert file.encode() in (proto or b"")


def test_what_is_the_same_on_all_devices_varies_with_the_rest() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    calls = []

    def f(a: Any, w: Any) -> Any:
        varying = jax_private.equally_varying([a, w])
        calls.extend(jax.typeof(x).mat.varying for x in (a, w, *varying))
        like = jax_private.aval_like([jax.typeof(x) for x in varying], (2, 1), jnp.float32)
        calls.append(like.mat.varying)
        return varying[0] * varying[1]

    jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(spec("i"), spec()), out_specs=spec("i")))(
        jnp.ones(2), jnp.ones(())
    )
    assert calls == [{"i"}, set(), {"i"}, {"i"}, {"i"}]


def test_jax_asks_the_files_it_is_given_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Files:
        _path = "nowhere"

        def get(self, key: str) -> None:
            asked.append(key)

        def put(self, key: str, value: bytes) -> None:
            asked.append(key)

    before = jax.config.jax_persistent_cache_min_compile_time_secs
    try:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax_private.use_program_files(Files())
        jax.jit(lambda x: x * 3 + 71)(jnp.ones(73))
    finally:
        jax_private.use_program_files(None)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    assert len(asked) >= 2
    assert len(set(asked)) == len(asked) // 2


def test_a_trace_without_its_lowering_is_another_to_jax() -> None:
    traced = jax.jit(lambda x: x + 1).trace(jnp.ones(3))
    twin = jax_private.without_lowering(traced)
    assert twin.jaxpr is not traced.jaxpr
    assert str(twin.jaxpr) == str(traced.jaxpr)
    assert twin.lower().as_text() == traced.lower().as_text()
    assert float(twin.lower().compile()(jnp.ones(3)).sum()) == 6


def test_a_printed_jaxpr_says_which_line_is_of_which_traceback() -> None:
    traced = jax.jit(lambda x: jnp.sin(x)).trace(jnp.ones(3))
    spans: list[Any] = []
    text = traced.jaxpr.pretty_print(source_map=spans, use_color=False)
    (sine,) = [i for i, line in enumerate(text.splitlines()) if "= sin" in line]
    assert len(spans) == len(text.splitlines())
    ((_, _, traceback),) = spans[sine]
    assert __file__ in {frame.file_name for frame in traceback.frames}, (
        "the view of a jaxpr needs it"
    )


def test_the_layout_of_a_programs_memory_is_told() -> None:
    compiled = jax.jit(jnp.sin).lower(jnp.ones(3)).compile()
    assignment = compiled.memory_analysis().serialized_buffer_assignment_proto  # type: ignore[union-attr]
    assert isinstance(assignment, bytes)
    assert assignment, "without it `%jax hlo` shows no memory by buffer"
