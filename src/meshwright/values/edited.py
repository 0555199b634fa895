"""Single values of a TOML, YAML or JSON text set, added and taken out; all other bytes stay.

Values are addressed by their path of keys. An edit is read again, and holds where the text then
says what was wanted and all other values what they said before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from meshwright.values.errors import ConfigError

if TYPE_CHECKING:
    import yaml

__all__ = ["Format", "Values", "edited_values", "smallest"]

Format = Literal["toml", "yaml", "json"]
Values = Mapping[str, Any]
"""Values by dotted path; None takes one out."""


def edited_values(text: str, values: Values, *, form: Format) -> str:
    """Return the text with its values changed; ConfigError where one can't be changed alone."""
    for path, value in values.items():
        text = _with_value(text, path.split("."), value, form)
    return text


def _with_value(text: str, keys: list[str], value: Any, form: Format) -> str:
    before = _parsed(text, form)
    wanted = _changed(before, keys, value)
    if wanted == before:
        return text
    edit = _toml_edit if form == "toml" else _yaml_edit
    try:
        tried = edit(text, keys, value)
        done = _parsed(tried, form) == wanted
    except (ValueError, LookupError, AssertionError):
        done = False
    if not done:
        says = "is to go" if value is None else f"is to say {json.dumps(value)}"
        path = ".".join(keys)
        raise ConfigError(
            f"{path} {says}, and no edit of the text does that alone: change it by hand"
        )
    return tried


def _parsed(text: str, form: Format) -> dict[str, Any]:
    if form == "toml":
        import tomllib

        return tomllib.loads(text)
    if form == "json":
        found: dict[str, Any] = json.loads(text)
        return found
    import yaml

    return yaml.safe_load(text) or {}


def _changed(values: Any, keys: list[str], value: Any) -> dict[str, Any]:
    """Return a document with one value set, or taken out with the mappings that this empties."""
    found = dict(values) if isinstance(values, Mapping) else {}
    key, rest = keys[0], keys[1:]
    if rest:
        if value is not None or key in found:
            found[key] = _changed(found.get(key), rest, value)
    elif value is not None:
        found[key] = value
    else:
        found.pop(key, None)
    return found


def _toml_edit(text: str, keys: list[str], value: Any) -> str:
    """Change a TOML's value by tomlkit; a new one goes behind the last of its table, before the
    comment of the next."""
    import tomlkit

    document: Any = tomlkit.parse(text)
    *tables, key = keys
    place = document
    for name in tables:
        if name not in place:
            return _toml_added(text, keys, value)
        place = place[name]
    if key not in place:
        return _toml_added(text, keys, value)
    if value is None:
        del place[key]
    else:
        quoted = isinstance(value, str) and place[key].as_string().startswith("'")
        place[key] = tomlkit.string(value, literal=True) if quoted else value
    return tomlkit.dumps(document)


def _toml_added(text: str, keys: list[str], value: Any) -> str:
    import tomlkit

    line = f"{keys[-1]} = {tomlkit.item(value).as_string()}\n"
    name = ".".join(keys[:-1])
    lines = text.splitlines(keepends=True)
    headers = [number for number, one in enumerate(lines) if re.match(r"\s*\[", one)]
    at = next((n for n in headers if lines[n].split("#")[0].strip() == f"[{name}]"), None)
    if at is None:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{name}]\n{line}"
    stop = next((n for n in headers if n > at), len(lines))
    last = max(n for n in range(at, stop) if lines[n].split("#")[0].strip())
    if not lines[last].endswith("\n"):
        lines[last] += "\n"
    indent = re.match(r"\s*", lines[last])
    lines.insert(last + 1, (indent[0] if indent is not None and last > at else "") + line)
    return "".join(lines)


def _yaml_edit(text: str, keys: list[str], value: Any) -> str:
    """Change a YAML's value, or a JSON's, where PyYAML's nodes say that it stands."""
    import yaml

    # a tab is blank in JSON and refused by YAML: one sign for another leaves every place as it is
    root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    place = root
    for number, key in enumerate(keys):
        entry = next((pair for pair in place.value if pair[0].value == key), None)
        last = number == len(keys) - 1
        if entry is None:
            return _yaml_added(text, place, keys[number:], value)
        if last:
            if value is None:
                return _yaml_without(text, place, entry)
            return _yaml_replaced(text, entry[1], value)
        if not isinstance(entry[1], yaml.MappingNode):
            return _yaml_replaced(text, entry[1], _nested(keys[number + 1 :], value))
        place = entry[1]
    raise AssertionError


def _nested(keys: list[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _yaml_replaced(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, _end(text, node)
    old = text[start:end]
    if isinstance(value, bool) and old in ("True", "False"):
        new = str(value)
    elif isinstance(value, str) and old.startswith("'"):
        new = f"'{value}'"
    elif isinstance(value, str) and not old.startswith('"') and re.fullmatch(r"[A-Za-z]\w+", value):
        new = value
    else:
        new = json.dumps(value)
    return text[:start] + (" " if start == end else "") + new + text[end:]


def _end(text: str, node: yaml.Node) -> int:
    """Return where a node's own text ends: a block's mark stands behind the blanks that follow."""
    import yaml

    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    end = node.end_mark.index
    return end - 1 if text[end - 1 : end] == "\n" else end


def _yaml_added(text: str, place: yaml.MappingNode, keys: list[str], value: Any) -> str:
    entries, flow = place.value, place.flow_style
    if not entries:
        start, end = place.start_mark.index, place.end_mark.index
        return text[:start] + json.dumps(_nested(keys, value)) + text[end:]
    at = entries[0][0].start_mark.index
    line = text.rfind("\n", 0, at) + 1
    indent = text[line:at]
    end = _end(text, entries[-1][1])
    if flow:
        said = f"{json.dumps(keys[0])}: {json.dumps(_nested(keys[1:], value))}"
        joint = f",\n{indent}" if not indent.strip() else ", "
        return text[:end] + joint + said + text[end:]
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    blank = " " * len(indent)
    said = "".join(f"\n{blank}{'  ' * depth}{key}:" for depth, key in enumerate(keys))
    word = isinstance(value, str) and re.fullmatch(r"[A-Za-z]\w+", value)
    return f"{text[:stop]}{said} {value if word else json.dumps(value)}{text[stop:]}"


def _yaml_without(text: str, place: yaml.MappingNode, entry: tuple[yaml.Node, yaml.Node]) -> str:
    start, end = entry[0].start_mark.index, _end(text, entry[1])
    number = place.value.index(entry)
    if place.flow_style:
        if number + 1 < len(place.value):
            return text[:start] + text[place.value[number + 1][0].start_mark.index :]
        if number:
            return text[: _end(text, place.value[number - 1][1])] + text[end:]
        return text[:start] + text[end:]
    line, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return text[:line] + (text[stop + 1 :] if stop >= 0 else "")


Same = Callable[[str], bool]


def smallest(text: str, values: Values, *, form: Format, same: Same) -> str:
    """Return the edit without the values that `same` does not miss: the fewest that are needed."""
    kept = dict(values)
    for path in values:
        fewer = {name: value for name, value in kept.items() if name != path}
        if same(edited_values(text, fewer, form=form)):
            kept = fewer
    return edited_values(text, kept, form=form)
