"""The chips of a row, their nodes, and which stage runs on which."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast

from meshwright.runs.measured.cells import (
    Cells,
    Notes,
    Placement,
    Rule,
    UnansweredError,
    read_rules,
)
from meshwright.runs.measured.models import usual_seq_len
from meshwright.search.rules.software import usual_attention
from meshwright.values.errors import UnknownNameError
from meshwright.values.hardware.catalogue import default_node, find_chip, find_link, network_link
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Node, Pool
from meshwright.values.hardware.parse import Server, parse_chip_mix, servers
from meshwright.values.layout import RECOMPUTE_MODULES, Recompute, RecomputeMethod
from meshwright.values.stack import find_stack
from meshwright.values.units import GBIT
from meshwright.values.workload import (
    LORA_TARGETS,
    AttentionKernel,
    LoraTarget,
    Precision,
    Routing,
    Workload,
)

__all__ = [
    "CONFIGURED",
    "WHERE_SHORT",
    "Machines",
    "machines_of_row",
    "recompute_of_row",
    "seq_len_of_row",
    "stage_chips",
    "workload_of_row",
]

_RATE = r"(?P<gbit>\d{1,6}(?:\.\d{1,3})?)\s*(?:Gb/s|Gbps|Gbit/s)"
_RATES = (
    (rf"(?P<nics>\d{{1,3}})\s*x\s*{_RATE}", "node"),
    (rf"(?:inter|node-node)\b[^,;]*?{_RATE}", "node"),
    (rf"{_RATE}[^,;]*(?:per node|node-node)", "node"),
    (_RATE, "chip"),
)
"""How a network's rate is written; one without "per node" is one NIC per chip, as in today's
servers."""


_FAMILIES = (
    ("efa", r"\bEFA\b"),
    ("roce", r"\bRoCE"),
    ("ib", r"\b(?:InfiniBand|IB|[EHNX]DR)\b"),
    ("slingshot", r"\bSlingshot"),
    ("tcp", r"\b(?:TCP|Ethernet|[GT]bE)\b"),
)
"""Kinds of networks by the words for them, the first that is found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Chips by kind, in the order of the ranks."""

    pools: tuple[tuple[str, int], ...]
    """(catalogue name, count)."""
    nodes: tuple[Node, ...]
    """One per pool."""

    @staticmethod
    def of(pool: Pool) -> Machines:
        """Return one kind of chips."""
        return Machines(pools=((pool.node.chip.name, pool.num_chips),), nodes=(pool.node,))

    @property
    def num_chips(self) -> int:
        """Chips of all pools."""
        return sum(count for _, count in self.pools)

    @property
    def mixed(self) -> bool:
        """Whether there are several kinds."""
        return len({name for name, _ in self.pools}) > 1


def machines_of_row(cells: Cells, *, num_chips: int, usual_network: str = "") -> Machines:
    """Return the row's chips; a kind without a count shares what the others leave.

    `usual_network` names the link between the nodes where the row says nothing of it.
    """
    text = cells.text("gpu")
    if text is None:
        raise UnansweredError("gpu: blank")
    pools = _counted(_mix(text, cells.number("gpu_mem_gb")), num_chips)
    return Machines(
        pools=pools, nodes=tuple(_node(cells, name, num_chips, usual_network) for name, _ in pools)
    )


def _node(cells: Cells, chip: str, num_chips: int, usual_network: str) -> Node:
    per_node = cells.count("gpus_per_node")
    rate = _network_gbps(cells, chip, per_node or default_node(chip).chips_per_node)
    node = default_node(chip, gpus_per_node=per_node, network_gbps=rate)
    family = _network_family(cells, chip)
    if family is not None and rate is not None:
        node = replace(node, network_link=network_link(rate, family=family))
    if usual_network and not cells.words("interconnect"):
        node = replace(node, network_link=find_link(usual_network))
    domain = _domain_chips(cells, num_chips)
    return replace(node, domain_size=domain) if domain is not None else node


def _mix(text: str, memory_gb: float | None) -> list[tuple[str, int | None]]:
    """Chips and counts; the memory column tells an A100 of 40 GB from one of 80, and remarks in
    brackets may be passed over."""
    plain = re.sub(r"\s*\([^)]*\)", "", text)
    untold = memory_gb and f"{memory_gb:g}" not in plain and "+" not in plain
    sized = [f"{plain}-{memory_gb:g}GB"] if untold else []
    for name in (*sized, text, plain):
        try:
            return parse_chip_mix(name)
        except UnknownNameError:
            continue
    return parse_chip_mix(text)


def _counted(mix: list[tuple[str, int | None]], num_chips: int) -> tuple[tuple[str, int], ...]:
    if len(mix) == 1:
        return ((mix[0][0], num_chips),)
    blank = sum(1 for _, count in mix if count is None)
    rest = num_chips - sum(count or 0 for _, count in mix)
    if rest < 0 or rest % (blank or 1) or (rest and not blank):
        raise UnansweredError("gpu: the counts of the mix do not sum to num_gpus")
    return tuple((name, count if count is not None else rest // blank) for name, count in mix)


def _network_gbps(cells: Cells, chip: str, per_node: int) -> float | None:
    """Gb/s per chip where the row says it; where it is ambiguous the catalogue's stays."""
    text = cells.text("interconnect") or ""
    by_server = _rates_by_server(text)
    if by_server:
        rates = [rate for family, rate in by_server.items() if _is_in(chip, family)]
        return rates[0] / per_node if rates else None
    if re.search(r"names? both|DCN", text):
        return None
    for pattern, unit in _RATES:
        found = re.search(pattern, text)
        if found is not None:
            rate = float(found["gbit"]) * int(found.groupdict().get("nics") or 1)
            shared = unit == "node" or _is_of_server(rate, text, chip)
            return (rate / per_node if shared and "per GPU" not in text else rate) or None
    return None


LARGEST_ADAPTER = 800.0
"""Gb/s of the fastest network adapter that is sold (InfiniBand XDR): a larger figure without a word
is a server's."""


def _is_of_server(rate: float, text: str, chip: str) -> bool:
    """Whether a rate without "per node" is a server's: of kernel sockets, which have one adapter;
    of EFA, whose figures AWS gives for whole instances, where it is more than this chip's usual;
    and of any kind where no adapter is so fast.
    """
    family = _worded_family(text)
    usual = default_node(chip).network_link.bytes_per_s / GBIT
    return family == "tcp" or (family == "efa" and rate > usual) or rate > LARGEST_ADAPTER


def _rates_by_server(text: str) -> dict[str, float]:
    """Gb/s by family of servers, as `50 Gb/s g4dn` says it."""
    found = re.findall(rf"{_RATE}\s+([a-z]\d\w{{0,4}})\b", text)
    return {family: float(rate) for rate, family in found}


def _network_family(cells: Cells, chip: str) -> str | None:
    """Kind of network (`tcp`): that of the servers of a named kind which hold this chip, else the
    one that the row's words are for."""
    text = cells.text("interconnect") or ""
    named = [family for family in _rates_by_server(text) if _is_in(chip, family)]
    found = {server.network.partition("-")[0] for family in named for server in _servers_of(family)}
    return min(found) if len(found) == 1 else _worded_family(text)


def _worded_family(text: str) -> str | None:
    found = (family for family, words in _FAMILIES if re.search(words, text, re.IGNORECASE))
    return next(found, None)


def _servers_of(family: str) -> list[Server]:
    return [server for server in servers() if server.name.partition(".")[0] == family]


def _is_in(chip: str, family: str) -> bool:
    """Whether servers of a family, `p3` or `g4dn`, hold this kind of chip, of whatever memory."""
    kinds = {server.chip.partition("-")[0] for server in _servers_of(family)}
    return chip.partition("-")[0] in kinds


def _domain_chips(cells: Cells, num_chips: int) -> int | None:
    """Chips of one slice of a torus, beyond which the data-centre network begins."""
    inside = cells.match("interconnect", r"inside a slice of (\d{1,6}) chips")
    if inside is not None:
        return max(1, int(inside[1]))
    slices = cells.match("interconnect", r"ICI; (\d{1,4}) slice")
    return max(1, num_chips // max(1, int(slices[1]))) if slices is not None else None


def stage_chips(machines: Machines, placement: Placement | None, *, pp: int) -> Placement:
    """Which chips hold each stage: as the row says, else the pools in order, in equal shares."""
    if placement is not None:
        known = tuple(
            tuple((find_chip(name).name, count) for name, count in stage) for stage in placement
        )
        total = sum(count for stage in known for _, count in stage)
        if len(known) == pp and total == machines.num_chips:
            return known
    if machines.num_chips % pp:
        raise UnansweredError("num_gpus: not divisible by pp")
    ranks = [name for name, count in machines.pools for _ in range(count)]
    width = len(ranks) // pp
    return tuple(_runs(ranks[stage * width : (stage + 1) * width]) for stage in range(pp))


def _runs(names: list[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, len(list(same))) for name, same in groupby(names))


WHERE_SHORT = "where short"
"""In `frameworks.csv`: nothing, or every layer where the run would not fit otherwise."""
CONFIGURED = "="
"""In `frameworks.csv`, before a micro batch: what the software's own configurations take, which a
run that was started from one of them has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputed:
    """The fields of a Layout that say what is recomputed."""

    recompute: Recompute = "none"
    recompute_method: RecomputeMethod = "uniform"
    recompute_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()


def recompute_of_row(
    cells: Cells, framework: Rule, *, layers_per_stage: int, vpp: int
) -> Recomputed:
    """Return it; a blank column takes the software's habit."""
    word = cells.words("recompute") or framework["recompute"].replace(WHERE_SHORT, "none")
    if word not in ("none", "selective", "full"):
        raise UnansweredError("recompute: expected none, selective or full")
    text = _words(cells, word)
    rule = read_rules("recompute_words").first(text)
    assert rule is not None, "the last rules of recompute_words.csv match every granularity"
    found = rule.pattern.search(text)
    assert found is not None
    if rule["recompute"] == "full":
        return _full(rule, found, cells, layers_per_stage=layers_per_stage, vpp=vpp)
    if rule["recompute"] == "selective":
        return Recomputed(recompute="selective", recompute_modules=_modules(rule, found, framework))
    return Recomputed()


def _words(cells: Cells, word: str) -> str:
    """Granularity, detail and the mode that the notes name, as the rules expect them; a recipe's
    origin in brackets is left out."""
    detail = re.split(r"\[tag|\[joined", cells.words("recompute_detail"))[0].strip()
    mode = cells.match("notes", r"op-level|per-op|selective (?:layer|op)\b")
    named = f" {mode[0].lower()}" if mode and word == "selective" else ""
    return f"{word} | {detail}{named}".rstrip()


def _modules(rule: Rule, found: re.Match[str], framework: Rule) -> tuple[str, ...]:
    usual, words = framework["selective"].split("+"), rule["modules"]
    named = usual if words == "usual" else words.split("+")
    if words == "modules":
        named = re.split(r"[ ,]+", found["modules"])
    return tuple(module for module in RECOMPUTE_MODULES if module in named) or tuple(usual)


def _full(
    rule: Rule, found: re.Match[str], cells: Cells, *, layers_per_stage: int, vpp: int
) -> Recomputed:
    layers: int | None = None
    if rule["layers"] == "layers":
        layers = int(found["layers"][:6])
        if cells.match("recompute_detail", "per-pp-rank"):
            layers = round(layers / vpp)
    elif rule["layers"] == "half":
        layers = max(1, layers_per_stage // vpp // 2)
    elif rule["layers"] == "range":
        first, last = int(found["first"][:6]), int(found["last"][:6])
        layers = _inside(range(first, last + 1), layers_per_stage)
    elif rule["layers"] == "list":
        listed = [int(word[:6]) for word in found["list"].split(",") if word]
        layers = _inside(listed, layers_per_stage)
    method: RecomputeMethod = "block" if rule["method"] == "block" else "uniform"
    if method == "uniform" and layers == 0:
        return Recomputed()
    return Recomputed(recompute="full", recompute_method=method, recompute_layers=layers)


def _inside(layers: range | list[int], layers_per_stage: int) -> int:
    """How many of the listed layers lie in the first stage, whose memory such rows tell."""
    return sum(1 for layer in layers if layer < layers_per_stage)


_KERNELS: tuple[tuple[re.Pattern[str], AttentionKernel], ...] = (
    (re.compile(r"fused_softmax|core attention"), "fused-softmax"),
    (re.compile(r"flash_attention_1|flash-attention 1|triton attention"), "flash1"),
    (re.compile(r"^torch$|eager|unfused|local|naive"), "unfused"),
    (re.compile(r"flash|fused|cudnn|splash|sdpa|^te\b|xformers|pallas"), "flash"),
)
"""How kernels are named, the first that matches."""


def seq_len_of_row(cells: Cells, notes: Notes, framework: Rule) -> int:
    """Tokens in a sequence: the column, else a default that the notes name, else what the model's
    family is usually trained with.

    Fine-tuning by software that does not pad samples to that length sees theirs, unless its script
    packs them (MindSpeed-LLM's `_pack`).
    """
    given = cells.count("seq_len") or notes.seq_len or usual_seq_len(cells)
    if given is None:
        raise UnansweredError("seq_len: blank, and the model's family is not known")
    packed = re.search(r"_pack(?![a-z])", cells.words("notes"))
    tuned = cells.words("task") in ("lora", "qlora", "sft") and not packed
    most = framework["tuning_tokens"]
    return min(given, int(most)) if tuned and most else given


def workload_of_row(
    cells: Cells, notes: Notes, framework: Rule, chip: Chip, *, seq_len: int, gbs: int
) -> Workload:
    """Return the workload."""
    real = cells.match("notes", r"real \(unbalanced\)")
    precision = _precision(cells, notes, framework, chip)
    return Workload(
        seq_len=seq_len,
        gbs=gbs,
        precision=precision,
        attention=_attention(cells, notes, framework, chip, seq_len=seq_len, precision=precision),
        fused_norm=not cells.match("rmsnorm_kernel", r"default|unfused|eager|torch"),
        routing="typical" if real else cast("Routing", framework["routing"] or "balanced"),
        dropout=framework["dropout"] == "1" and not _without_dropout(cells, notes),
        lora_rank=int(framework["lora_rank"]) if _frozen(cells) else 0,
        lora_targets=_lora_targets(cells) if _frozen(cells) else LORA_TARGETS,
        sample_len=_sample_len(cells, seq_len),
    )


SQUAD_TOKENS = 200
"""Tokens of a mean sample of SQuAD, on which NeMo's pages fine-tune: a paragraph of Wikipedia, a
question and an answer of a few words (arXiv:1606.05250, where no mean length was found). Assumed,
to a factor of two; attention inside a sample is all that it moves."""


def _sample_len(cells: Cells, seq_len: int) -> int | None:
    """Tokens of a mean sample where the row says that sequences are packs of NeMo's samples."""
    packs = cells.words("framework").startswith("nemo") and cells.match(
        "notes", r"packed sequences"
    )
    return min(SQUAD_TOKENS, seq_len) if packs else None


def _lora_targets(cells: Cells) -> tuple[LoraTarget, ...]:
    """Layers with adapters: those that the software's users adapt."""
    text = f"{cells.words('framework')} | release {cells.words('release')}"
    rule = read_rules("adapters").first(text)
    assert rule is not None, "the last rule of adapters.csv matches every software"
    return cast("tuple[LoraTarget, ...]", tuple(rule["targets"].split()))


def _without_dropout(cells: Cells, notes: Notes) -> bool:
    """Whether the run is of a kind that has no dropout: Llama's kin, or a Megatron command of the
    rotary age (its own default is 0.1); context-parallel attention has none either."""
    rotary = notes.flags.get("position-embedding-type") in ("rope", "none")
    return cells.words("arch") in ("llama", "moe-gqa") or rotary or (cells.count("cp") or 1) > 1


def _frozen(cells: Cells) -> bool:
    """Whether all but adapters, or all but a projector between frozen models (LLaVA,
    arXiv:2304.08485, stage 1), stays as it is."""
    flag = cells.match("notes", r"script flags: [^;]*\blora-r\b")
    projector = cells.match("model", r"(vlm|llava)\w*pretrain")
    return bool(cells.words("task") in ("lora", "qlora") or flag or projector)


def _precision(cells: Cells, notes: Notes, framework: Rule, chip: Chip) -> Precision:
    text = cells.words("precision")
    if not text and framework["precision"]:
        return cast("Precision", framework["precision"])
    if not text:
        return "bf16" if chip.bf16_flops_per_s else "fp16"
    rule = read_rules("precisions").first(f"{text} {notes.flags.get('fp8-recipe', '')}")
    if rule is None:
        raise UnansweredError("precision: not known")
    return cast("Precision", rule["precision"])


def _attention(
    cells: Cells,
    notes: Notes,
    framework: Rule,
    chip: Chip,
    *,
    seq_len: int,
    precision: Precision,
) -> AttentionKernel:
    """The kernel that the row names, else the software's usual one."""
    backend = notes.flags.get("attention-backend")
    if backend is not None:
        return "fused-softmax" if backend in ("unfused", "local") else "flash"
    if notes.flags.get("transformer-impl") == "local" and "use-flash-attn" not in notes.flags:
        return "fused-softmax"
    text = cells.words("attention_kernel")
    named = next((kernel for pattern, kernel in _KERNELS if pattern.search(text)), None)
    return named or usual_attention(
        find_stack(framework["stack"]),
        seq_len=seq_len,
        has_flash=chip.has_flash_attention,
        precision=precision,
        kernels=framework["attention"],
    )
