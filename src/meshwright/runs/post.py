"""JSON over HTTP, to addresses that may hold a secret: what is said of one never does."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from meshwright.values.errors import ConfigError
from meshwright.values.secrets import HIDDEN

__all__ = ["Address", "Refused", "get", "post_json", "read_address", "with_path"]

TIMEOUT_S = 5.0
"""A server that takes longer is asked again at the next look."""
_LATER = (408, 425, 429)
"""Answers of 400 to 499 that ask for another try."""
_MOST_BYTES = 4096
"""Of a file that holds an address."""
_MOST_ANSWER_BYTES = 2**20


class Refused(Exception):
    """An answer that will be the same next time."""

    def __init__(self, words: str, *, code: int) -> None:
        """Take the sentence and the status."""
        super().__init__(words)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where JSON is sent."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    shown: str
    """The scheme and the host alone: paths and queries of webhooks are their passwords."""


def read_address(text: str, *, option: str) -> Address:
    """Read an http or https URL, or a file whose first line is one; a message never shows it.

    A user and a password in it are sent as basic authentication, as curl does.
    """
    url = text if "://" in text else _first_line(Path(text), option)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not _is_plain(url):
        raise ConfigError(
            f"{option}: expected a URL such as https://example.org/hook, or a file whose first line"
            " is one"
        )
    place = f"[{host}]" if ":" in host else host
    place = place if port is None else f"{place}:{port}"
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    has_more = parts.path not in ("", "/") or parts.query
    return Address(
        url=urlunsplit((parts.scheme, place, parts.path, parts.query, "")),
        headers=headers,
        shown=f"{parts.scheme}://{place}{f'/{HIDDEN}' if has_more else ''}",
    )


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


def _first_line(path: Path, option: str) -> str:
    try:
        with path.open(encoding="utf-8") as handle:
            return handle.readline(_MOST_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text"
        raise ConfigError(f"{option} {path}: neither a URL nor a file with one ({why})") from None


def with_path(address: Address, path: str, query: str | None = None) -> Address:
    """Return an address with a path behind its own, unless it ends so already."""
    scheme, place, own, own_query, _ = urlsplit(address.url)
    own = own.rstrip("/")
    whole = own if own.endswith(path) else own + path
    asked = own_query if query is None else query
    return replace(address, url=urlunsplit((scheme, place, whole, asked, "")))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A POST that is sent elsewhere would arrive there as a GET, without its words."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_json(address: Address, content: Mapping[str, Any]) -> bytes:
    """Send it and return the answer; OSError where a later try may succeed, else Refused."""
    return _answer(address, json.dumps(content, allow_nan=False).encode())


def get(address: Address) -> bytes:
    """Ask and return the answer; errors as of `post_json`."""
    return _answer(address, None)


def _answer(address: Address, body: bytes | None) -> bytes:
    request = urllib.request.Request(
        address.url,
        data=body,
        headers={
            "Content-Type": "application/json",
            "User-Agent": "meshwright",
            **address.headers,
        },
        method="GET" if body is None else "POST",
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read(_MOST_ANSWER_BYTES)
            return found
    except urllib.error.HTTPError as error:
        with error:
            words = f"it answered {error.code}"
            if error.code < 500 and error.code not in _LATER:
                raise Refused(words, code=error.code) from None
            raise OSError(words) from None
    except urllib.error.URLError as error:
        reason = error.reason
        raise OSError(str(getattr(reason, "strerror", None) or reason)) from None
    except HTTPException as error:
        raise OSError(f"{type(error).__name__} instead of an answer") from None
