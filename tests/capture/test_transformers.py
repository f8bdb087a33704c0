"""Models that `transformers` builds from a configuration, captured whole: three steps as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

import jaxtorch

from .training import compile_on_cpu, compile_on_jax, moved, pure, same_state, train

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("fresh_dynamo")

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}


def llama():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    ids = torch.randint(0, 48, (2, 9))
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids.clone()}


def bert():
    config = transformers.BertConfig(
        **SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3
    )
    mask = (torch.arange(9) < torch.tensor([[9], [6]])).long()
    inputs = {"input_ids": torch.randint(0, 48, (2, 9)), "attention_mask": mask}
    model = transformers.BertForSequenceClassification(config)
    return model, {**inputs, "labels": torch.tensor([0, 2])}


def mixtral(implementation="grouped_mm"):
    """By default, the experts' products are one operator of Transformers (operators/transformers.py)."""
    config = transformers.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, experts_implementation=implementation
    )
    ids = torch.randint(0, 48, (2, 9))
    return transformers.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids.clone()}


def mixtral_in_a_batch():
    return mixtral("batched_mm")


def llama_with_states():
    """Its layers' states are collected by hooks, in a list in a context variable."""
    model, inputs = llama()
    return model, {**inputs, "output_hidden_states": True}


MODELS = (llama, llama_with_states, bert, mixtral, mixtral_in_a_batch)


def made(make):
    model, inputs = make()
    # A cache of keys and values is an object with tensors that outlives the call.
    return model.train(), {**inputs, **({} if make is bert else {"use_cache": False})}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("make", "way"),
    [
        *((make, pure) for make in MODELS),
        # Dynamo cannot enter the lock under which the hooks for the states are added.
        *((make, compile_on_cpu) for make in MODELS if make is not llama_with_states),
        (mixtral, compile_on_jax),
        (mixtral_in_a_batch, compile_on_jax),
    ],
)
@pytest.mark.sampled(4)
def test_three_steps(make, way):
    before = jaxtorch.fallbacks()
    expected, inputs = made(make)
    model = copy.deepcopy(expected)
    call, device = way(model)
    model.to(device)
    mine = train(model, call, moved(inputs, device), sgd)
    torch.testing.assert_close(mine, train(expected, expected, inputs, sgd))
    same_state(model, expected)
    assert jaxtorch.fallbacks() == before


@pytest.mark.parametrize("make", MODELS)
def test_three_steps_as_one_program_each(make):
    expected, inputs = made(make)
    model = copy.deepcopy(expected).to("jax")
    mine = train(model, model, moved(inputs, "jax"), sgd, jaxtorch.jit)
    torch.testing.assert_close(mine, train(expected, expected, inputs, sgd))
    same_state(model, expected)
