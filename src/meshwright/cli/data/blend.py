"""`meshwright data blend`: the weights of several corpora, as the training programs write them."""

from __future__ import annotations

from meshwright.cli.data.flags import JsonFlag, OutputFileFlag, write_json
from meshwright.cli.options import REQUIRED, argument, command, option

__all__ = ["blend"]


@command
def blend(
    inputs: list[str] = argument(
        REQUIRED, "Prefixes, folders, quoted patterns.", metavar="PAIRS..."
    ),
    by: str = option("tokens", "What weights follow: tokens, documents or equal.", metavar="WHAT"),
    temperature: float = option(
        1.0, "Sizes to the power 1/T: above 1, small corpora weigh more.", metavar="T"
    ),
    weights: str | None = option(None, "A mixture of your own.", metavar="W,W,... | PREFIX=W,..."),
    train_tokens: str | None = option(
        None, "Say how often each corpus is read, such as 300B.", metavar="TOKENS"
    ),
    form: str | None = option(
        None, "Only its line: megatron, nemo or bridge.", "--to", metavar="PROGRAM"
    ),
    output: OutputFileFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Weigh corpora by their tokens or by a mixture of your own; the weights sum to 1 as they are
    printed.

    A weight is the share of the training's samples that come from a corpus. Rounding to six digits
    gives what is left to those that lost the most by it.

    Prints each corpus with its weight, and the words of Megatron-LM (--data-path), NeMo 1.x
    (data_prefix) and Megatron-Bridge (blend).

    Examples:

      meshwright data blend data/en_text_document data/de_text_document

      meshwright data blend data/ --weights 0.7,0.2,0.1 --train-tokens 300B

      meshwright data blend data/ --temperature 2 --to nemo
    """
    import json
    from typing import get_args

    from meshwright.data.blending import FORMS, By
    from meshwright.data.blending import blend as run
    from meshwright.values.errors import ConfigError, UnknownNameError
    from meshwright.values.units import format_count, parse_count

    if by not in get_args(By):
        raise UnknownNameError("value of --by", by, get_args(By))
    if form is not None and form not in FORMS:
        raise UnknownNameError("value of --to", form, FORMS)
    train = None if train_tokens is None else parse_count(train_tokens, name="--train-tokens")
    if train == 0:
        raise ConfigError(f"--train-tokens {train_tokens}: expected 1 or more")
    mixture = run(
        inputs,
        by=by,  # type: ignore[arg-type]
        temperature=temperature,
        weights=None if weights is None else _weights(weights),
    )
    epochs = None if train is None else mixture.epochs(train)
    rows = [
        {
            "prefix": prefix,
            "weight": weight,
            "tokens": tokens,
            "epochs": None if epochs is None else epochs[place],
        }
        for place, (prefix, weight, tokens) in enumerate(
            zip(mixture.prefixes, mixture.weights, mixture.tokens, strict=True)
        )
    ]
    record = {"blend": rows, "forms": mixture.forms()}
    if output is not None:
        write_json(output, record)
    if json_output:
        print(json.dumps(record, indent=2))
        return
    if form is not None:
        print(mixture.forms()[form])
        return
    for place, (prefix, word, tokens) in enumerate(
        zip(mixture.prefixes, mixture.words(), mixture.tokens, strict=True)
    ):
        print(
            f"{word}  {prefix}: {format_count(tokens)} tokens"
            + ("" if epochs is None else f", read {epochs[place]:.2f} times")
        )
    print()
    for name, text in mixture.forms().items():
        print(f"{name}: {text}")


def _weights(text: str) -> list[float] | dict[str, float]:
    """Read `0.7,0.3` or `a=0.7,b=0.3`; ConfigError for anything else."""
    from meshwright.values.errors import ConfigError

    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        if all(equals for _, equals, _ in parts):
            return {name: float(number) for name, _, number in parts}
        if not any(equals for _, equals, _ in parts):
            return [float(number) for _, _, number in parts]
    except ValueError:
        pass
    raise ConfigError(
        f"--weights {text}: expected numbers (0.7,0.3), or a prefix with each"
        " (data/en=0.7,data/de=0.3)"
    )
