"""The model that a command line of Megatron-LM describes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.software.megatron_lm.pipeline import layers_in_pattern
from meshwright.software.megatron_lm.words import Args, expert_layers
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import presets
from meshwright.values.models.spec import HybridSpec, MambaSpec, MlaSpec, ModelSpec, MoeSpec

__all__ = ["fields_below", "read_model"]

_VOCAB_OF = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
}
"""Entries of tokenizers that have one vocabulary only."""

Fields = dict[str, Any]


def fields_below(fields: Fields, part: str) -> Fields:
    """Return the fields of a part (`model.`), by the rest of their paths."""
    return {path.removeprefix(part): fields[path] for path in fields if path.startswith(part)}


def read_model(args: Args, *, program: str, fields: Fields, null_adds: int) -> ModelSpec:
    """Build the model from the bound fields (`model.hidden`, ...) and the flags that are left;
    `null_adds`: NullTokenizer's own entry."""
    dims = fields_below(fields, "model.")
    own = {name: value for name, value in dims.items() if "." not in name}
    if "hidden" not in own or "num_heads" not in own:
        raise ConfigError("--hidden-size and --num-attention-heads: expected both")
    pattern = args.text("--hybrid-layer-pattern") or args.text("--hybrid-override-pattern")
    own |= _layers(args, program, pattern) | _heads(args, own)
    own |= {
        "gated": fields["details.activation_gated"],
        "attention_sinks": _sinks(args),
        **_window(args),
    }
    own["mla"] = _mla(args, dims)
    if own["mla"] is not None:
        own["num_kv_heads"] = own["num_heads"]
    own |= _ffn(args, own, dims, clamps_gate=fields.get("details.gate_clamp") is not None)
    own["max_positions"] = _positions(args, own)
    # No flag tells YaRN's factor; of Megatron's models gpt-oss alone has learned sinks, and has it.
    own["rotation_has_factor"] = own["attention_sinks"] and own["positions"] == "rope"
    own["hybrid"], own["mamba"] = _hybrid(args, own, dims, pattern)
    if program == "pretrain_bert.py":
        head = not args.switch("--bert-no-binary-head")
        own |= {"mlm_head": head, "token_types": 2 if head else 0}
    if not own["linear_bias"]:
        own["qkv_bias"] = own.get("qkv_bias", False)
    vocab = _vocab(args, fields, null_adds)
    model = ModelSpec(name="custom", vocab=vocab or 1, **own)
    return _named(args, model, known_vocab=vocab is not None)


def _layers(args: Args, program: str, pattern: str | None) -> Fields:
    if pattern is not None:
        args.words("--num-layers")
        return {
            "num_layers": sum(layers_in_pattern(pattern).values()),
            "mtp_layers": pattern.count("/") or 0,
        }
    encoder, decoder, plain = (
        args.count(flag)
        for flag in ("--encoder-num-layers", "--decoder-num-layers", "--num-layers")
    )
    if program == "pretrain_t5.py":
        total = encoder or plain
        if total is None:
            raise ConfigError("--encoder-num-layers: expected the layers of the encoder")
        return {
            "family": "encoder-decoder",
            "encoder_layers": total,
            "num_layers": decoder or total,
        }
    layers = plain or encoder
    if layers is None:
        raise ConfigError("--num-layers: expected the layers of the model")
    return {
        "num_layers": layers,
        **({"family": "encoder"} if program == "pretrain_bert.py" else {}),
    }


def _heads(args: Args, own: Fields) -> Fields:
    groups = args.count("--num-query-groups")
    grouped = args.switch("--group-query-attention")
    head_dim = own.get("head_dim") or own["hidden"] // own["num_heads"]
    return {"num_kv_heads": (groups or 1) if grouped else own["num_heads"], "head_dim": head_dim}


def _sinks(args: Args) -> bool:
    kind = args.text("--softmax-type") or "vanilla"
    if kind == "off-by-one":
        args.hand_on("--softmax-type", kind)
    return kind == "learnable"


def _window(args: Args) -> Fields:
    given, every = args.text("--window-size"), args.text("--window-attn-skip-freq")
    if given is None:
        return {}
    try:
        return {"window": int(given.strip("()").split(",")[0]) + 1, "global_every": int(every or 0)}
    except ValueError:
        raise ConfigError(
            f"--window-size {given} --window-attn-skip-freq {every}: expected 127,0 and one number"
        ) from None


def _mla(args: Args, dims: Fields) -> MlaSpec | None:
    values = fields_below(dims, "mla.")
    if not args.switch("--multi-latent-attention"):
        return None
    args.drop("--rotary-scaling-factor", "1.0")
    usual = {
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "q_lora_rank": None,
    }
    return MlaSpec(**{**usual, **values})


def _ffn(args: Args, own: Fields, dims: Fields, *, clamps_gate: bool) -> Fields:
    hidden, gated = own["hidden"], own["gated"]
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    given = fields_below(dims, "moe.")
    if not given.get("num_experts"):
        return {"ffn": own.get("ffn", usual), "moe": None}
    given.setdefault("expert_ffn", own.get("ffn", usual))
    first, every = expert_layers(args.text("--moe-layer-freq") or "1", own["num_layers"])
    moe = MoeSpec(
        **given,
        first_dense_layers=first,
        layer_frequency=every,
        expert_bias=own["linear_bias"],
        clamps_gate=clamps_gate,
    )
    return {"ffn": own.get("ffn", usual if first or every > 1 else 0), "moe": moe}


def _positions(args: Args, own: Fields) -> int:
    longest = args.count("--max-position-embeddings") or 0
    if args.switch("--use-rotary-position-embeddings"):
        own["positions"] = "rope"
    return longest if own["positions"] == "learned" else 0


def _hybrid(
    args: Args, own: Fields, dims: Fields, pattern: str | None
) -> tuple[HybridSpec | None, MambaSpec | None]:
    heads = args.count("--mamba-num-heads")
    args.words("--spec")
    args.switch("--is-hybrid-model")
    if pattern is None:
        return None, None
    counts = layers_in_pattern(pattern)
    hybrid = HybridSpec(
        attention_layers=counts["attention"],
        mamba_layers=counts["mamba"],
        ffn_layers=counts["mlp"] + counts["moe"],
    )
    given = {"state_dim": 128, "head_dim": 64, "num_groups": 8, **fields_below(dims, "mamba.")}
    given["num_heads"] = heads or 2 * own["hidden"] // given["head_dim"]
    return hybrid, MambaSpec(**given) if counts["mamba"] else None


def _vocab(args: Args, fields: Fields, null_adds: int) -> int | None:
    given, padded = args.count("--vocab-size"), args.count("--padded-vocab-size")
    if given is not None:
        return given + null_adds * (fields.get("settings.tokenizer_kind") == "null")
    # merges alone name GPT-2's words: pretrain_gpt.py takes its tokenizer unless told otherwise
    unsaid = "GPT2BPETokenizer" if fields.get("settings.merge_file") else ""
    return padded or _VOCAB_OF.get(fields.get("tokenizer_word", unsaid))


def _named(args: Args, model: ModelSpec, *, known_vocab: bool) -> ModelSpec:
    """Return the model with the name, and where the command line has none the vocabulary, of the
    known model of its shape."""
    for preset in presets():
        vocab = preset.spec.vocab if known_vocab else model.vocab
        if replace(preset.spec, name=model.name, vocab=vocab) == model:
            if not known_vocab:
                args.warnings.append(
                    f"no --vocab-size: taken from {preset.spec.name}, {preset.spec.vocab}"
                )
            return preset.spec
    if not known_vocab:
        raise ConfigError(
            "no --vocab-size, and no known model has this shape; add --vocab-size N to the command"
        )
    return model
