"""The model of a row: the named preset or the family's habits, overridden by the row's dims."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress
from typing import Any

from meshwright.runs.measured.cells import Cells, Notes, Rule, UnansweredError, read_rules
from meshwright.sizing.shapes import shape_of
from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.models.said_size import size_in_name, size_of_cell, wrong_size
from meshwright.values.models.spec import MODEL_PARTS, ModelSpec

__all__ = ["model_of_row", "usual_seq_len"]

Draft = dict[str, Any]
_OWN_KEYS = ("ffn_per_hidden", "mamba_expand")
_DIMS = {
    "layers": "num_layers",
    "hidden": "hidden",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "vocab": "vocab",
}
_NAMELESS = re.compile(r"[:(]")
"""`gpt:some_test_case`, `llama3-70b(truncated)`: only what stands before can be a name."""
_DENSE_RATIO = 4
"""A width this many times the known experts' is the dense one, which configs of models with experts
in every layer state as well."""
_TEST_MODEL = re.compile(r"^(gpt|moe|hybrid|nemotron|mixtral):(?!.*release)", re.IGNORECASE)
"""Suite and case of a functional test of the Megatron-LM repository; its release runs are models of
their own."""
_TEST_VOCAB = 50257
"""Those tests train on GPT-2's byte-pair encoding (`--vocab-file .../bpe/vocab.json`), whatever
model they are cut from."""
_NAMED_SIZE = re.compile(r"(?<![\dxa.])(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z0-9])(?!-a\d)")
"""`smollm3-3b`, `own-350m`: the parameters of a dense model in its name; not `8x7b` nor
`30b-a3b`."""
_MIXED = re.compile(r"moe|mixtral|\d+x\d")
"""An architecture or a name that tells of experts: `moe-gqa`, `8x7b`."""
_OF_A_KIND = (
    *("moe", "mla", "mtp_layers", "window", "global_every", "attention_sinks"),
    *("rotation_has_factor", "delta", "attention_gate", "global_attention", "values_are_keys"),
)
"""What a word in a name does not give away."""
_OF_ITS_EXPERTS = ("ffn", "head_dim", "num_kv_heads")
"""Widths that a family has because of its experts or its latent attention."""
_MOST_DENSE = 80e9
"""Parameters beyond which a model that nothing is said of is more likely one with experts."""
_OTHER_KINDS = re.compile(
    r"\b(flux|wan|sdxl|dit|vit|clip|neva|whisper|llava)\b|diffusion|vlm?\b|video|vision|omni"
)
"""Models of pictures, of several media or of sound: their size alone says nothing of a language
model's shape."""
_SHAPE = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "ffn")
_MEGATRON_MLA = "deepseek-v3"
"""Latent attention without its dims: Megatron's tests with it are cut from DeepSeek-V3."""


def model_of_row(cells: Cells, notes: Notes, *, seq_len: int) -> tuple[ModelSpec, str]:
    """Return the model and a line for people on what had to be taken for granted of it, empty where
    name or dims tell it.

    Raises UnansweredError where neither its name nor its dims say what it is.
    """
    family = _family(cells)
    draft, named = _base(cells, family)
    if not named:
        _require_own_dims(cells, family)
        draft = _without_guesses(draft, cells, notes)
    sized = not named and _is_sized(cells, draft)
    if sized:
        draft = {**_shape_of_size(cells, draft), **draft}
    base = dict(draft)
    _apply_dims(draft, cells, base)
    _apply_ffn(draft, cells, base, named=named)
    _apply_experts(draft, cells)
    cut = _cut_down(draft, base, cells, notes)
    _apply_notes(draft, notes, cells)
    _finish(draft, cells, seq_len, whole=base.get("num_layers", 1))
    spec = _spec(draft)
    same = ("num_layers", "hidden", "vocab")
    known = named and all(base.get(name) == getattr(spec, name) for name in same)
    if not known and notes.tied is None:
        spec = _tied_by_size(spec, cells.number("params_b"))
    said = "" if named else _assumed(family, sized=sized)
    return spec, "; ".join(line for line in (said, cut, _wrong_size(spec, cells)) if line)


def _wrong_size(spec: ModelSpec, cells: Cells) -> str:
    """What is wrong with the number of parameters, where the row does not say that it is cut."""
    name, billions = cells.text("model") or "", cells.number("params_b")
    told = size_of_cell(billions) if billions else size_in_name(name)
    if told is None and name.lower() != spec.name.lower():
        return ""  # a functional test's or a cut model's name
    line = wrong_size(spec, said=told)
    return f"model: {line}" if line else ""


def _require_own_dims(cells: Cells, family: Rule | None) -> None:
    """A name that merely has a known family's word in it is no member of it: its dims are its own.

    Raises UnansweredError where the row lacks them.
    """
    if family is None or not family["base"]:
        return
    missing = [name for name in ("layers", "hidden", "heads") if cells.count(name) is None]
    if missing:
        raise UnansweredError(f"model: a name that is not known, without its {', '.join(missing)}")


def _without_guesses(draft: Draft, cells: Cells, notes: Notes) -> Draft:
    """Leave out the experts and the latent attention of a family whose name or word is all that the
    row shares with it: an unknown model is dense unless the row tells of experts."""
    mixed = cells.count("experts") is not None or _MIXED.search(
        f"{cells.words('arch')} {cells.words('model')}"
    )
    latent = "mla" in cells.words("arch") or "multi-latent-attention" in notes.flags
    if mixed or latent:
        return draft
    sparse = draft.get("moe") or draft.get("mla")
    guessed = (*_OF_A_KIND, *(_OF_ITS_EXPERTS if sparse else ()))
    return {key: value for key, value in draft.items() if key not in guessed}


def _cut_down(draft: Draft, base: Draft, cells: Cells, notes: Notes) -> str:
    """Take no layers for further tokens and no dense first ones for a model that is cut from the
    known one, unless the row tells of them: a single dense one by its width, others by its notes.
    Return what was left out, for people."""
    moe = draft.get("moe")
    if not moe or draft["num_layers"] >= base.get("num_layers", 0):
        return ""
    dense, further = moe.get("first_dense_layers", 0), draft.get("mtp_layers", 0)
    kept = dense if dense == 1 and _tells_dense_width(cells, moe) else 0
    draft["moe"], draft["mtp_layers"] = {**moe, "first_dense_layers": kept}, 0
    left_out = []
    if dense > kept and notes.first_dense_layers is None:
        left_out.append(f"its {dense} dense first layers")
    if further and notes.mtp_layers is None:
        left_out.append("its multi-token prediction")
    if not left_out:
        return ""
    return f"model: cut to {draft['num_layers']} layers, without {' and '.join(left_out)}"


def _tells_dense_width(cells: Cells, moe: Draft) -> bool:
    return bool((cells.count("ffn") or 0) >= _DENSE_RATIO * moe.get("expert_ffn", 0))


def usual_seq_len(cells: Cells) -> int | None:
    """Tokens in a sequence that models of this family are usually trained with, where known."""
    family = _family(cells)
    return int(family["seq_len"]) if family is not None and family["seq_len"] else None


def _assumed(family: Rule | None, *, sized: bool) -> str:
    if sized:
        return "model: a name that is not known, its shape made from its number of parameters"
    if family is not None and not family["seq_len"]:
        return "model: neither its name nor its architecture known, taken for a Llama 2"
    return ""


def _is_sized(cells: Cells, draft: Draft) -> bool:
    """Whether a dense model's parameters are told, and its dims are not."""
    told = "num_layers" in draft or cells.count("layers") or cells.count("hidden")
    if told or draft.get("family") == "encoder-decoder":
        return False
    named = f"{cells.words('model')} {cells.words('arch')}".replace("_", "-")
    experts = cells.count("experts") or any(key.startswith("moe") for key in draft)
    size = _size(cells)
    if experts or _OTHER_KINDS.search(named) or size is None:
        return False
    return size <= _MOST_DENSE or bool(cells.words("arch"))


def _size(cells: Cells) -> float | None:
    """Parameters by the row's column, else by the model's name."""
    billions = cells.number("params_b")
    if billions:
        return billions * 1e9
    found = _NAMED_SIZE.search(cells.words("model"))
    return None if found is None else float(found[1]) * {"b": 1e9, "m": 1e6}[found[2]]


def _shape_of_size(cells: Cells, draft: Draft) -> Draft:
    """Dims of a model of this size: GPT-3's kind; where the feed-forward is gated Llama 2's or,
    with fewer key-value heads, Llama 3's."""
    series = "gpt3" if not draft.get("gated") else "llama3" if "num_kv_heads" in draft else "llama2"
    size = _size(cells)
    assert size is not None, "asked for rows that tell it"
    spec = shape_of(size, series=series, vocab=cells.count("vocab") or draft.get("vocab")).model
    return {key: value for key, value in dataclasses.asdict(spec).items() if key in _SHAPE}


def _family(cells: Cells) -> Rule | None:
    return read_rules("families").first(f"{cells.words('model')} | {cells.words('arch')}")


def _base(cells: Cells, family: Rule | None) -> tuple[Draft, bool]:
    """The preset called like the model, else the family's habits; and whether it was the former."""
    name = cells.text("model") or "unnamed"
    preset = _preset(_NAMELESS.split(name)[0])
    if preset is not None and not (family is not None and family["over"]):
        return _draft(preset), True
    if family is None:
        raise UnansweredError("model: neither a known name nor a known architecture")
    base = preset or (find_model(family["base"]) if family["base"] else None)
    layers_told = "num_layers=" in family["fields"] or cells.count("layers") is not None
    if preset is None and base is not None and not layers_told:
        raise UnansweredError("model: a name that is not known, without its layers")
    draft = {**(_draft(base) if base is not None else {}), "name": name}
    for word in family["fields"].split():
        key, _, value = word.partition("=")
        _put(draft, key, _value(value))
    return draft, preset is not None


def _preset(name: str) -> ModelSpec | None:
    try:
        return find_model(name)
    except UnknownNameError:
        return None


def _draft(spec: ModelSpec) -> Draft:
    return dataclasses.asdict(spec)


def _value(text: str) -> Any:
    if text == "none":
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _put(draft: Draft, key: str, value: Any) -> None:
    part, dot, field = key.partition(".")
    if not dot:
        draft[key] = value
        return
    draft[part] = {**(draft.get(part) or {}), field: value}


def _apply_dims(draft: Draft, cells: Cells, base: Draft) -> None:
    for column, field in _DIMS.items():
        value = cells.count(column)
        if value is not None:
            draft[field] = value
    if cells.count("vocab") is None and cells.match("model", _TEST_MODEL.pattern):
        draft["vocab"] = _TEST_VOCAB
    if "hidden" in draft and "num_heads" not in draft and "head_dim" in draft:
        draft["num_heads"] = max(1, draft["hidden"] // draft["head_dim"])
    needed = {column: field for column, field in _DIMS.items() if column != "kv_heads"}
    missing = [column for column, field in needed.items() if field not in draft]
    if draft.get("family") == "encoder-decoder" and "hidden" in draft and "layers" in missing:
        draft["num_layers"] = _t5_layers(draft)
        missing.remove("layers")
    if cells.match("notes", "hybrid-layer-pattern=") and "layers" in missing:
        draft["num_layers"] = 1
        missing.remove("layers")
    if missing:
        raise UnansweredError(f"model: a name that is not known, without its {', '.join(missing)}")
    _follow_heads(draft, cells, base)


def _t5_layers(draft: Draft) -> int:
    """T5's published sizes (arXiv:1910.10683): 12 layers a side up to hidden 768, then 24."""
    return 12 if draft["hidden"] <= 768 else 24


def _follow_heads(draft: Draft, cells: Cells, base: Draft) -> None:
    """Key-value heads and head size follow the row's heads where the base's can't hold."""
    same_heads = base.get("num_heads", draft["num_heads"]) == draft["num_heads"]
    fits = draft["num_heads"] % draft.get("num_kv_heads", draft["num_heads"]) == 0
    if cells.count("kv_heads") is None and not (same_heads and fits and "num_kv_heads" in draft):
        usual = draft.get("num_kv_heads", draft["num_heads"])
        kept = draft["num_heads"] % usual == 0 and "num_heads" not in base
        draft["num_kv_heads"] = usual if kept else draft["num_heads"]
    same_shape = same_heads and base.get("hidden", draft["hidden"]) == draft["hidden"]
    if "head_dim" not in draft or not (same_shape or "hidden" not in base):
        draft["head_dim"] = max(1, draft["hidden"] // draft["num_heads"])


def _apply_ffn(draft: Draft, cells: Cells, base: Draft, *, named: bool) -> None:
    """The column is the experts' width where every layer has experts, else the dense layers'."""
    ffn = cells.count("ffn")
    ratio = draft.pop("ffn_per_hidden", None)
    moe = draft.get("moe")
    if ffn is None and "ffn" not in base:
        draft["ffn"] = _usual_ffn(draft, ratio)
        return
    if ffn is None:
        hidden = base.get("hidden", draft["hidden"])
        draft["ffn"] = round(base["ffn"] * draft["hidden"] / hidden) or base["ffn"]
        return
    mixed = bool(moe and (moe.get("first_dense_layers") or moe.get("layer_frequency", 1) > 1))
    if moe and "expert_ffn" in moe and not mixed and ffn < _DENSE_RATIO * moe["expert_ffn"]:
        draft["moe"] = {**moe, "expert_ffn": ffn}
        draft["ffn"] = base.get("ffn") or ffn
        return
    draft["ffn"] = ffn


def _usual_ffn(draft: Draft, ratio: float | None) -> int:
    """Four times the hidden size, or two thirds of that rounded up to 64 where it is gated."""
    hidden: int = draft["hidden"]
    if ratio is not None:
        return round(ratio * hidden)
    return -(-8 * hidden // 3 // 64) * 64 if draft.get("gated", 1) else 4 * hidden


def _apply_experts(draft: Draft, cells: Cells) -> None:
    experts, top_k = cells.count("experts"), cells.count("topk")
    dense = cells.words("arch") in ("llama", "gpt", "bert", "t5", "mpt")
    if experts is None:
        if draft.get("moe") and dense and not cells.words("model").startswith("moe"):
            draft["moe"] = None
        return
    moe = {
        "num_experts": experts,
        "top_k": 1,
        "expert_ffn": draft["ffn"],
        **(draft.get("moe") or {}),
    }
    moe["num_experts"] = experts
    moe["top_k"] = min(top_k or moe["top_k"], experts)
    draft["moe"] = moe


def _apply_notes(draft: Draft, notes: Notes, cells: Cells) -> None:
    """Flags of the training command that say something of the model's shape."""
    flags, name = notes.flags, cells.words("model")
    latent = "multi-latent-attention" in flags
    if "swiglu" in flags or "swiglu" in name:
        _swiglu(draft, cells)
    untied = "untie-embeddings-and-output-weights" in flags or "untie_embeddings" in name
    rotary = flags.get("position-embedding-type")
    own_dim = None if draft.get("mla") else notes.flag_count("kv-channels")
    if latent and not draft.get("mla"):
        draft["mla"] = _draft(find_model(_MEGATRON_MLA))["mla"]
    said = {
        "tied": notes.tied if notes.tied is not None else False if untied else None,
        "linear_bias": False if latent or "disable_bias_linear" in name else None,
        "qk_norm": True if "qk_layernorm" in name else None,
        "positions": rotary if rotary in ("rope", "none") else None,
        "head_dim": notes.head_dim if notes.head_dim is not None else own_dim,
        "num_kv_heads": notes.flag_count("num-query-groups"),
        "vocab": notes.flag_count("vocab-size"),
        "mtp_layers": notes.mtp_layers,
    }
    draft |= {key: value for key, value in said.items() if value is not None}
    _apply_moe_notes(draft, notes)
    if notes.hybrid_pattern:
        _apply_pattern(draft, notes.hybrid_pattern)


def _swiglu(draft: Draft, cells: Cells) -> None:
    draft["gated"] = True
    draft["norm"] = "rmsnorm" if draft.get("moe") else draft.get("norm", "rmsnorm")
    if cells.count("ffn") is None:
        # Megatron-LM's own rule for --swiglu.
        draft["ffn"] = int(4 * draft["hidden"] * 2 / 3 / 64) * 64 or 64
        if draft.get("moe"):
            draft["moe"] = {**draft["moe"], "expert_ffn": draft["ffn"]}


def _apply_moe_notes(draft: Draft, notes: Notes) -> None:
    if not draft.get("moe"):
        return
    found = {
        "expert_ffn": notes.flag_count("moe-ffn-hidden-size"),
        "shared_ffn": notes.flag_count("moe-shared-expert-intermediate-size"),
        "first_dense_layers": notes.first_dense_layers,
        "capacity_factor": notes.capacity_factor,
    }
    moe = {**draft["moe"], **{key: value for key, value in found.items() if value is not None}}
    if moe.get("first_dense_layers", 0) >= draft["num_layers"]:
        moe["first_dense_layers"] = draft["num_layers"] - 1
    draft["moe"] = moe


def _apply_pattern(draft: Draft, pattern: str) -> None:
    """Megatron's hybrid layer pattern: M mixer, * attention, - feed-forward, E experts; what
    follows a slash predicts further tokens."""
    main, *extra = pattern.split("/")
    draft["num_layers"] = len(main)
    draft["mtp_layers"] = len(extra)
    draft["hybrid"] = {
        "attention_layers": main.count("*"),
        "mamba_layers": main.count("M"),
        "ffn_layers": main.count("-") + main.count("E"),
    }
    if "E" not in main:
        draft["moe"] = None
    if main.count("M") and not draft.get("mamba"):
        draft["mamba"] = {"state_dim": 128, "num_groups": 8, "head_dim": 64}


def _finish(draft: Draft, cells: Cells, seq_len: int, *, whole: int) -> None:
    """Settle what hangs on the final dims; `whole` layers has the model that they were cut from."""
    expand = draft.pop("mamba_expand", 2)
    if draft.get("mamba") and "num_heads" not in draft["mamba"]:
        draft["mamba"] = {
            **draft["mamba"],
            "num_heads": max(1, round(expand * draft["hidden"]) // draft["mamba"]["head_dim"]),
        }
    if draft.get("positions") == "learned":
        draft["max_positions"] = seq_len
    told = cells.count("layers") is not None or not draft.get("encoder_layers")
    if draft.get("family") == "encoder-decoder" and told:
        draft["encoder_layers"] = draft["num_layers"]
    moe = draft.get("moe")
    if moe and moe.get("first_dense_layers", 0) >= draft["num_layers"]:
        draft["moe"] = {**moe, "first_dense_layers": draft["num_layers"] - 1}
    if draft.get("hybrid"):
        _rescale_hybrid(draft)
    if delta := draft.get("delta"):
        linear = delta["num_layers"] * draft["num_layers"] // whole
        draft["delta"] = {**delta, "num_layers": linear} if linear else None


def _rescale_hybrid(draft: Draft) -> None:
    """Keep the mix of a hybrid model whose layers the row overrides."""
    parts = draft["hybrid"]
    total, layers = sum(parts.values()), draft["num_layers"]
    if total == layers:
        return
    attention = parts["attention_layers"] * layers // total
    mamba = parts["mamba_layers"] * layers // total
    draft["hybrid"] = {
        "attention_layers": attention,
        "mamba_layers": mamba,
        "ffn_layers": layers - attention - mamba,
    }


def _tied_by_size(spec: ModelSpec, billions: float | None) -> ModelSpec:
    """Share the embedding with the head, or not, where the stated size clearly says so: within 4 %,
    and twice as near."""
    if not billions or spec.moe is not None:
        return spec
    other = dataclasses.replace(spec, tied=not spec.tied)
    miss, other_miss = (
        abs(model_params(model).total / 1e9 / billions - 1) for model in (spec, other)
    )
    return other if other_miss < 0.04 and 2 * other_miss < miss else spec


def _spec(draft: Draft) -> ModelSpec:
    parts: dict[str, Any] = {
        name: kind(**draft.pop(name)) if draft.get(name) else draft.pop(name, None)
        for name, kind in MODEL_PARTS.items()
    }
    kinds = {field.name: field.type for field in dataclasses.fields(ModelSpec)}
    fields: dict[str, Any] = {
        key: bool(value) if kinds.get(key) == "bool" else value
        for key, value in draft.items()
        if key not in _OWN_KEYS
    }
    return ModelSpec(**fields, **parts)
