"""Templates of `manifests/`: every value goes through `tojson`, and the text is parsed back before use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from xpk.model.yaml_loader import LOADER
from xpk.render.resources import manifests_dir

if TYPE_CHECKING:
    import jinja2

_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def render_template(template: str, **values: Any) -> list[dict[str, Any]]:
    """Return the objects of a template of `manifests/` for these values."""
    text = _environment().get_template(template).render(**values)
    return [document for document in yaml.load_all(text, Loader=LOADER) if document is not None]


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # only commands that create something need it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(manifests_dir()),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # YAML, not HTML; `tojson` below quotes every value
        keep_trailing_newline=True,
    )
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: Any) -> str:
    """Return JSON that YAML reads back as the same value: YAML knows no surrogate pairs in escapes."""

    def join(match: re.Match[str]) -> str:
        high, low = int(match[1], 16), int(match[2], 16)
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"

    text = json.dumps(dict(value) if isinstance(value, Mapping) else value)
    return _SURROGATES.sub(join, text).replace("\x7f", "\\x7f")
