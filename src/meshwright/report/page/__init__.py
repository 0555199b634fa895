"""A report as one page of HTML: no network, no second file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from meshwright.report.charts.draw import draw
from meshwright.report.charts.forms import Grid, Machine, Timeline
from meshwright.report.charts.svg import GROUND, NARROW, WIDTH, cell_words, chart_css
from meshwright.report.parts.part import Block, Part, Words
from meshwright.values.errors import MissingExtraError

__all__ = ["page_html", "pictures_script"]


def page_html(parts: Sequence[Part], *, title: str, made: str) -> str:
    """Return the page; `made` says when and by what."""
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("jinja2", "report") from None
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(cell=cell_words, breakable=_breakable)
    environment.globals.update(
        draw=_drawn, kind_of=_kind_of, every_width=(("wide", WIDTH), ("narrow", NARROW))
    )
    template = environment.from_string(_file("page.html.j2"))
    styles = "\n".join((_grounds(), _file("page.css"), _file("print.css"), chart_css()))
    numbered = list(enumerate(parts, start=1))
    script = f"{pictures_script()}\n{_file('page.js')}"
    return template.render(
        parts=numbered, title=title, made=made, styles=_raw(styles), script=_raw(script)
    )


def pictures_script() -> str:
    """Return the JavaScript of pictures that answer, for any page that shows them: the machine map
    (`meshwrightPictures.machine`) and the timeline (`meshwrightPictures.timeline`)."""
    return "\n".join(map(_file, ("machine.js", "timeline.js")))


def _file(name: str) -> str:
    return (
        resources.files("meshwright").joinpath("report", "page", name).read_text(encoding="utf-8")
    )


def _raw(text: str) -> Any:
    """Mark text of our own as HTML."""
    import markupsafe

    return markupsafe.Markup(text)


def _breakable(words: str) -> Any:
    """Let long words without a space be cut behind their signs, so that tables stay narrow."""
    import markupsafe

    cut = _LONG_WORD.sub(
        lambda found: _SIGN.sub(r"\1<wbr>", found[0]), str(markupsafe.escape(words))
    )
    return _raw(cut)


_LONG_WORD = re.compile(r"[^\s&;]{15,}")
_SIGN = re.compile(r"([._/,+-])")


def _drawn(block: Any, part: int, wide: float) -> Any:
    """Draw a chart; ids within it are made unique by the number of its part."""
    return _raw(
        draw(block, wide)
        .replace(f'"{block.key}-', f'"p{part}-{block.key}-')
        .replace(f"(#{block.key}-", f"(#p{part}-{block.key}-")
    )


def _kind_of(block: Block) -> str:
    if isinstance(block, Words):
        return "words"
    if isinstance(block, Grid):
        return "grid"
    if isinstance(block, Machine):
        return "machine"
    return "timeline" if isinstance(block, Timeline) else "chart"


def _grounds() -> str:
    """Colours as variables: light, dark by the reader's wish or choice, and light on paper."""
    light, dark = (
        "".join(f"--{name}:{colours[i]};" for name, colours in GROUND.items()) for i in (0, 1)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        "@media"
        f" (prefers-color-scheme:dark){{:root:not([data-ground=light]){{color-scheme:dark;{dark}}}}}"  # noqa: E501
        f":root[data-ground=dark]{{color-scheme:dark;{dark}}}"
        "@media"
        f" print{{:root,:root[data-ground=dark],:root:not([data-ground=light]){{color-scheme:light;{light}}}}}"  # noqa: E501
    )
