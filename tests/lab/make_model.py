"""Writes a tiny Llama with seeded random weights and a byte-level tokenizer: `make_model.py FOLDER`.

Runs in the lab's own virtual environment. One byte of text is one token, so prompt lengths are
easy to predict, and greedy answers are the same on every machine with the same packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HIDDEN, INNER, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 512, 2, 4, 2, 16
POSITIONS = 8192
SPECIAL = ("<s>", "</s>", "<pad>")
BYTES = 256


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    from tokenizers import (  # type: ignore[import-not-found,unused-ignore]
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab.update({name: BYTES + index for index, name in enumerate(SPECIAL)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    turns = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **names}
    write_json(
        folder / "tokenizer_config.json",
        {**settings, "clean_up_tokenization_spaces": False, "chat_template": turns},
    )


def write_config(folder: Path) -> None:
    ids = {"bos_token_id": BYTES, "eos_token_id": BYTES + 1, "pad_token_id": BYTES + 2}
    write_json(folder / "generation_config.json", ids)
    write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float32",
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCAB,
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "initializer_range": 0.02,
            **ids,
        },
    )


def write_weights(folder: Path) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from safetensors.torch import save_file  # type: ignore[import-not-found,unused-ignore]

    torch.manual_seed(0)
    embedding = torch.randn(VOCAB, HIDDEN)
    head = torch.randn(VOCAB, HIDDEN) * 0.3
    head[BYTES + len(SPECIAL) :] = 0.0  # keep ids without a token from winning
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    projections = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(LAYERS):
        for name, shape in projections.items():
            weights[f"model.layers.{layer}.{name}.weight"] = torch.randn(*shape) * 0.15
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_config(folder)
    write_weights(folder)


if __name__ == "__main__":
    main()
