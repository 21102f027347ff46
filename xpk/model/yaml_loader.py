"""The safe loader for YAML, with a parser in C where there is one: ten times as fast."""

from __future__ import annotations

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
