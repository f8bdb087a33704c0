"""Text generation as docs/other_libraries.md describes it: one program for the prompt, one for each further token."""

from __future__ import annotations

import torch
import transformers

import jaxtorch


def test_each_token_is_a_run_of_one_program() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=100,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.arange(5)[None]
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
    model = model.to("jax")
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)

    @jaxtorch.jit
    def next_token(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = model(
            tokens,
            past_key_values=cache,
            cache_position=positions,
            position_ids=positions[None],
            use_cache=True,
        )
        return out.logits[:, -1].argmax(-1, keepdim=True)

    with torch.no_grad():
        tokens = [next_token(prompt.to("jax"), torch.arange(5, device="jax"))]
        for i in range(5, 12):
            tokens.append(next_token(tokens[-1], torch.tensor([i], device="jax")))
    assert torch.cat(tokens, 1).tolist() == expected[:, 5:].tolist()
    assert next_token.cache_info().misses <= 3
    assert next_token.cache_info().hits >= 5
