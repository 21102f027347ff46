"""The user's code as shipped by Ray: the head's copy, put into Ray's store once and read from there by every host.

Ray unpacks it on each host before the first process that needs it, and starts tasks and actors in it: they run the
head's code, whatever lies on their own hosts.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

# The whole folder: exclusions were applied when the archive was made. Python's caches come from running it.
_ALL_OF_IT = {"RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1", "RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES": "__pycache__"}
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def runtime_env(folder: str) -> dict[str, Any]:
    """Return the argument of `ray.init(runtime_env=...)` that ships a whole folder, without Ray's own exclusions."""
    os.environ |= _ALL_OF_IT
    return {"working_dir": folder}


def shipped(ray: Any) -> str:
    """Return the address in Ray's store of the code that this driver has shipped, "" if it has shipped none."""
    return str(ray.get_runtime_context().runtime_env.get("working_dir", ""))


def default_of_program(code: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a program's `ray.init()` finds the shipped code, as Ray's own jobs do.

    The program's own `ray.init(runtime_env=...)` is merged and takes precedence.
    """
    if not code or _JOB_CONFIG in environ:
        return {}
    return {
        _JOB_CONFIG: json.dumps({"runtime_env": {"working_dir": code}}),
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": environ.get("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1"),
    }
