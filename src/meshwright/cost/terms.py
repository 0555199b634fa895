"""The terms of a step's time, each as one closed form of what its layers, ends and stages take.

The names in a formula here are the names in the code, so that `meshwright explain --term NAME` can
put the numbers of one layout into it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.stages import Floats

__all__ = [
    "bubble_s",
    "data_term_s",
    "head_term_s",
    "imbalance_s",
    "layer_term_s",
    "pipeline_messages_s",
    "recompute_term_s",
    "simulated_bubble_s",
    "simulated_messages_s",
]


@makes(
    *("matmul", "attention", "pointwise", "launch", "tp_comm", "cp_comm", "ep_comm"),
    *("fsdp_comm", "offload"),
)
def layer_term_s(
    term: str,
    *,
    passes: Floats,
    layers: Sequence[float],
    forward_s: Sequence[Floats],
    backward_s: Sequence[Floats],
) -> Floats:
    """Seconds of a step that the mean stage spends on one term of its layers, (N,).

    `passes` are the micro batches over the stages; `layers` how many layers each segment of the
    model has; `forward_s` and `backward_s` what one micro batch takes of the term in one of them.

    Formula:  passes * sum(layers * (forward_s + backward_s))
    Units:    seconds.
    Source:   definition: a stage of the mean has layers / pp of the layers, and each micro batch
              passes it once each way.
    Valid:    any term of LAYER_TERMS, and the gathers of sharded weights.
    Checked:  tests/search/test_provenance.py
    """
    del term  # for whoever watches the call
    return np.asarray(
        passes * sum(c * (f + b) for c, f, b in zip(layers, forward_s, backward_s, strict=True))
    )


@makes("recompute")
def recompute_term_s(
    *, passes: Floats, redone_share: Floats, layers: Sequence[float], redo_s: Sequence[Floats]
) -> Floats:
    """Seconds of a step that the mean stage spends on forward work done again, (N,).

    Formula:  passes * redone_share * sum(layers * redo_s)
    Units:    seconds.
    Source:   definition; `redo_s` of a layer is from `redo_of`, or its whole forward pass.
    Valid:    any kind of recompute.
    Checked:  tests/search/test_provenance.py
    """
    again = (count * redo for count, redo in zip(layers, redo_s, strict=True))
    return np.asarray(passes * redone_share * sum(again))


@makes("head")
def head_term_s(
    *,
    passes: Floats,
    heads: int,
    embedding_forward_s: Floats,
    embedding_backward_s: Floats,
    head_forward_s: Floats,
    head_backward_s: Floats,
) -> Floats:
    """Seconds of a step that embedding, output head and loss take of the mean stage, (N,).

    Formula:  passes * (embedding_forward_s + embedding_backward_s + heads * (head_forward_s +
              head_backward_s))
    Units:    seconds.
    Source:   definition; `heads` is one, and one for each layer of multi-token prediction.
    Valid:    any layout.
    Checked:  tests/search/test_provenance.py
    """
    head = heads * (head_forward_s + head_backward_s)
    return np.asarray(passes * (embedding_forward_s + embedding_backward_s + head))


@makes("imbalance")
def imbalance_s(
    *, num_microbatches: NDArray[np.int64], slowest_s: Floats, mean_s: Floats
) -> Floats:
    """Seconds of a step that the slowest stage works beyond the mean one, (N,).

    `slowest_s` is one micro batch, both ways, on the slowest stage; `mean_s` what all micro batches
    take the mean stage.

    Formula:  max(0, num_microbatches * slowest_s - mean_s)
    Units:    seconds.
    Source:   definition.
    Valid:    any layout.
    Checked:  tests/search/test_provenance.py
    """
    return np.asarray(np.maximum(0.0, num_microbatches * slowest_s - mean_s))


@makes("bubble")
def bubble_s(*, silent_s: Floats, slowest_s: Floats) -> Floats:
    """Seconds that a pipeline's slowest stage waits, were its messages to take no time, (N,).

    `silent_s` is the whole pipeline by the schedule's closed form (`cost/closed_forms.py`), and
    `slowest_s` what all micro batches take its slowest stage.

    Formula:  silent_s - slowest_s
    Units:    seconds.
    Source:   `pipeline_s`.
    Valid:    as `pipeline_s`.
    Checked:  tests/search/test_provenance.py
    """
    return np.asarray(silent_s - slowest_s)


@makes("dp_comm")
def data_term_s(
    *, reduction_s: Floats, gathering_s: Floats, tied_s: Floats, copies_s: Floats | float
) -> Floats:
    """Seconds that the exchange between replicas adds to a step, (N,).

    `reduction_s` and `gathering_s` are what the last backward and the first forward pass leave of
    the reduction of gradients and the gathering of weights; `tied_s` is a tied table's own
    reduction, `copies_s` what a processor copies for them.

    Formula:  reduction_s + gathering_s + tied_s + copies_s
    Units:    seconds.
    Source:   `once_terms_s`.
    Valid:    any layout.
    Checked:  tests/search/test_provenance.py
    """
    return np.asarray(reduction_s + gathering_s + tied_s + copies_s)


@makes("pp_comm")
def pipeline_messages_s(*, whole_s: Floats, silent_s: Floats) -> Floats:
    """Seconds that a pipeline's messages add to it, (N,).

    `whole_s` is the pipeline by the schedule's closed form with its messages, `silent_s` the same
    without.

    Formula:  whole_s - silent_s
    Units:    seconds.
    Source:   `pipeline_s`; one message is from `message_s`.
    Valid:    as `pipeline_s`.
    Checked:  tests/search/test_provenance.py
    """
    return np.asarray(whole_s - silent_s)


@makes("pp_comm")
def simulated_messages_s(*, simulated_s: float, busy_s: float, closed_messages_s: float) -> float:
    """Seconds of a simulated pipeline that are its messages' part of waiting.

    `simulated_s` is the pipeline in the event simulation, `busy_s` the work of its slowest stage,
    and `closed_messages_s` what the closed form gives the messages.

    Formula:  min(closed_messages_s, max(0, simulated_s - busy_s))
    Units:    seconds.
    Source:   the event simulation, `cost/simulate.py`; the split of waiting between bubble and
              messages is the closed form's.
    Valid:    pipelines short enough to be simulated.
    Checked:  tests/search/test_provenance.py
    """
    return min(closed_messages_s, max(0.0, simulated_s - busy_s))


@makes("bubble")
def simulated_bubble_s(*, simulated_s: float, busy_s: float, messages_s: float) -> float:
    """Seconds that the slowest stage of a simulated pipeline waits for anything but messages.

    Formula:  max(0, simulated_s - busy_s) - messages_s
    Units:    seconds.
    Source:   the event simulation, `cost/simulate.py`.
    Valid:    pipelines short enough to be simulated.
    Checked:  tests/search/test_provenance.py
    """
    return max(0.0, simulated_s - busy_s) - messages_s
