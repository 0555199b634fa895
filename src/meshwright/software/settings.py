"""What a training run needs beyond the plan: length, optimizer, data, checkpoints; and what a
model's shape leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from meshwright.values.amounts import MOST, check_amounts
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.lines import check_lines, check_no_option

__all__ = [
    "Activation",
    "Dataset",
    "DecayStyle",
    "ModelDetails",
    "RouterBalance",
    "RouterScore",
    "TokenizerKind",
    "TrainingSettings",
]

DecayStyle = Literal["constant", "linear", "cosine", "inverse-square-root", "warmup-stable-decay"]
Activation = Literal["gelu", "silu", "relu", "squared-relu", "quick-gelu"]
"""Inner function of the feed-forward; with a gated one its gate: silu is SwiGLU, gelu is GeGLU;
quick-gelu is x * sigmoid(1.702 x)."""
TokenizerKind = Literal[
    "huggingface", "sentencepiece", "gpt2-bpe", "tiktoken", "bert-wordpiece", "null"
]
RouterScore = Literal["softmax", "sigmoid"]
RouterBalance = Literal["aux-loss", "sequence-aux-loss", "bias", "none"]
"""bias: a bias per expert that follows its load, beside a small sequence-wise loss
(DeepSeek-V3)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One tokenized corpus of a blend."""

    path: str
    """Without `.bin` or `.idx`, where the software reads Megatron's format."""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("data: a path is empty")
        check_lines(self)
        check_no_option(self, ["path"])
        if not 0 < self.weight < MOST:
            raise ConfigError(f"data {self.path}: weight={self.weight}: expected a positive number")


def _check_choice(owner: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(owner, name)
    if value is not None and value not in choices:
        raise UnknownNameError(name.replace("_", " "), str(value), choices)


def _shares(text: str) -> tuple[float, ...]:
    """Read shares as people write them, 99,1,0."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{text}: expected numbers such as 99,1,0") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDetails:
    """What the cost of a model does not depend on, but its training does; None follows the rule
    that the field names.

    `software/defaults.py` applies the rules; a series of models with its own values has a row in
    `software/model_details.csv`.
    """

    activation: Activation | None = None
    """silu where the feed-forward is gated, else gelu."""
    gate_offset: float | None = None
    """What is added to what a gate multiplies: nothing; 1 in gpt-oss."""
    gate_clamp: float | None = None
    """Largest value at a gate and beside it; None has no limit."""
    norm_eps: float | None = None
    """1e-5."""
    rope_base: float | None = None
    """10,000 (RoFormer, arXiv:2104.09864)."""
    rope_share: float | None = None
    """Share of a head's dims that are rotated: 1."""
    rope_scaling: float | None = None
    """Factor by which Llama 3.1 stretches low frequencies; None is no stretching."""
    window_rope_base: float | None = None
    """Of layers with a window; None is `rope_base`."""
    query_scale: float | None = None
    """Scores are divided by its root; None is a head's dims."""
    score_cap: float | None = None
    """Scores s become cap * tanh(s / cap) (Gemma 2); None is no cap."""
    logit_cap: float | None = None
    """The same of the logits."""
    dropout: float | None = None
    """Of hidden states and attention: 0, or 0.1 where the workload keeps dropout masks."""
    router_score: RouterScore | None = None
    """softmax over all experts; sigmoid in models that balance by a bias."""
    router_balance: RouterBalance | None = None
    """aux-loss."""
    aux_loss: float | None = None
    """Weight of the balancing loss: 1e-2 (Switch, arXiv:2101.03961, and GShard); 1e-4 beside a bias
    (DeepSeek-V3)."""
    routed_scale: float | None = None
    """What routed experts' outputs are multiplied by; None is 1."""
    router_groups: int | None = None
    """Groups of experts that routing chooses first (DeepSeek); None has none."""
    router_top_groups: int | None = None
    mtp_loss: float | None = None
    """Weight of the loss of multi-token prediction: 0.1."""

    def __post_init__(self) -> None:
        _check_choice(self, "activation", get_args(Activation))
        _check_choice(self, "router_score", get_args(RouterScore))
        _check_choice(self, "router_balance", get_args(RouterBalance))
        check_amounts(
            self,
            [
                "norm_eps",
                "rope_base",
                "window_rope_base",
                "aux_loss",
                "routed_scale",
                "mtp_loss",
                "gate_offset",
            ],
            least=0,
        )
        check_amounts(self, ["rope_scaling", "router_groups", "router_top_groups"], least=1)
        check_amounts(self, ["gate_clamp", "query_scale", "score_cap", "logit_cap"], least=1e-6)
        check_amounts(self, ["dropout"], least=0, below=1)
        if self.rope_share is not None and not 0 < self.rope_share <= 1:
            raise ConfigError(f"rope_share={self.rope_share}: expected a share in (0, 1]")
        if (self.router_groups is None) != (self.router_top_groups is None):
            raise ConfigError(
                "router_groups and router_top_groups belong together; give both or none"
            )

    @staticmethod
    def of(given: Mapping[str, Any]) -> ModelDetails:
        """Build details from plain values (YAML, JSON)."""
        known = {field.name: str(field.type) for field in fields(ModelDetails)}
        for key, value in given.items():
            if key not in known:
                raise UnknownNameError("detail of a model", str(key), tuple(known))
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and ("float" in known[key] or "int" in known[key]) != is_number:
                raise ConfigError(
                    f"model.details: {key}={value!r}: expected a"
                    f" {'word' if is_number else 'number'}"
                )
        return ModelDetails(**given)


_NAMES = ("tokenizer", "vocab_file", "merge_file", "save_dir", "load_dir")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """How a plan is trained; None follows the rule that the field names
    (`software/defaults.py`)."""

    train_steps: int | None = None
    """Without steps, samples or tokens: 20 tokens per active parameter (Chinchilla,
    arXiv:2203.15556); 100 steps on mock data."""
    train_samples: int | None = None
    train_tokens: int | None = None
    learning_rate: float | None = None
    """By size, as GPT-3 (arXiv:2005.14165, table 2.1): 6e-4 at 125 M parameters to 0.6e-4 at 175
    B."""
    min_learning_rate: float | None = None
    """A tenth of the peak (GPT-3, Chinchilla)."""
    warmup_steps: int | None = None
    """1 % of the steps, at least one and at most 2,000 (Llama)."""
    decay_style: DecayStyle | None = None
    """cosine, over the whole run."""
    weight_decay: float | None = None
    """0.1 (GPT-3)."""
    adam_beta1: float | None = None
    """0.9."""
    adam_beta2: float | None = None
    """0.95 (GPT-3)."""
    adam_eps: float | None = None
    """1e-8 (GPT-3)."""
    clip_gradient: float | None = None
    """1.0 (GPT-3)."""
    init_std: float | None = None
    """0.02 (GPT-2); 0.006 from a hidden size of 7,168 on (DeepSeek-V3)."""
    seed: int | None = None
    """1234."""
    data: tuple[Dataset, ...] = ()
    """Empty: mock data, so that a plan starts anywhere."""
    split: tuple[float, ...] | None = None
    """Training, validation and test shares: 99, 1, 0."""
    tokenizer: str | None = None
    """Name or folder of a Hugging Face tokenizer, or the file of another kind; None with mock data:
    no tokenizer is needed."""
    tokenizer_kind: TokenizerKind | None = None
    """huggingface where a tokenizer is named, else null."""
    vocab_file: str | None = None
    merge_file: str | None = None
    save_dir: str | None = None
    """None writes no checkpoints."""
    load_dir: str | None = None
    save_interval: int | None = None
    """500 steps."""
    log_interval: int | None = None
    """10 steps on real data, 1 on mock data."""
    eval_interval: int | None = None
    """1,000 steps."""
    eval_steps: int | None = None
    """10 on real data; 0, that is no evaluation, on mock data."""
    extra: tuple[str, ...] = ()
    """Words that are handed to the program as they are, behind ours."""

    def __post_init__(self) -> None:
        check_lines(self)
        check_no_option(self, _NAMES)
        check_amounts(
            self,
            [
                "train_steps",
                "train_samples",
                "train_tokens",
                "save_interval",
                "log_interval",
                "eval_interval",
            ],
            least=1,
        )
        check_amounts(
            self,
            ["learning_rate", "min_learning_rate", "warmup_steps", "weight_decay", "clip_gradient"],
            least=0,
        )
        check_amounts(self, ["adam_eps", "init_std", "seed", "eval_steps"], least=0)
        check_amounts(self, ["adam_beta1", "adam_beta2"], least=0, below=1)
        _check_choice(self, "decay_style", get_args(DecayStyle))
        _check_choice(self, "tokenizer_kind", get_args(TokenizerKind))
        lengths = [
            name
            for name in ("train_steps", "train_samples", "train_tokens")
            if getattr(self, name) is not None
        ]
        if len(lengths) > 1:
            raise ConfigError(
                f"{' and '.join(f'{name}={getattr(self, name)}' for name in lengths)}: give one of"
                " them"
            )
        self._check_rates()

    def _check_rates(self) -> None:
        if (
            self.learning_rate is not None
            and self.min_learning_rate is not None
            and self.min_learning_rate > self.learning_rate
        ):
            raise ConfigError(
                f"min_learning_rate={self.min_learning_rate} is above"
                f" learning_rate={self.learning_rate}"
            )
        if self.split is not None and (
            not 1 <= len(self.split) <= 3 or min(self.split) < 0 or sum(self.split) <= 0
        ):
            raise ConfigError(
                f"split={','.join(map(str, self.split))}: expected up to three shares such as"
                " 99,1,0"
            )

    @staticmethod
    def of(given: dict[str, Any]) -> TrainingSettings:
        """Build settings from plain values (YAML, JSON); `data` may be paths, or path: weight."""
        known = [field.name for field in fields(TrainingSettings)]
        for key in given:
            if key not in known:
                raise UnknownNameError("setting", str(key), known)
        values = dict(given)
        data = values.get("data", ())
        if isinstance(data, str):
            data = {data: 1.0}
        pairs = (
            data.items()
            if isinstance(data, dict)
            else [(entry, 1.0) if isinstance(entry, str) else entry for entry in data]
        )
        values["data"] = tuple(
            entry if isinstance(entry, Dataset) else Dataset(path=entry[0], weight=float(entry[1]))
            for entry in pairs
        )
        for name in ("split", "extra"):
            if values.get(name) is not None:
                values[name] = (
                    _shares(values[name])
                    if name == "split" and isinstance(values[name], str)
                    else tuple(values[name])
                )
        return TrainingSettings(**values)
