"""The user's code as shipped by Ray: the head's copy, stored in Ray once and read from there by every host.

Ray unpacks it on each host before the first process that needs it, and starts tasks and actors in its folder: they run
the head's code, not the code on their own hosts.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

# The complete folder is shipped: exclusions were applied when the archive was made. Python's caches are from running
# it.
_NO_EXCLUSIONS = {"RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1", "RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES": "__pycache__"}
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def runtime_env(folder: str) -> dict[str, Any]:
    """Return the argument of `ray.init(runtime_env=...)` that ships a complete folder, without Ray's own exclusions."""
    os.environ |= _NO_EXCLUSIONS
    return {"working_dir": folder}


def shipped_code(ray: Any) -> str:
    """Return the address in Ray's store of the code that this driver has shipped; "" if there is none."""
    return str(ray.get_runtime_context().runtime_env.get("working_dir", ""))


def program_environment(code: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a program's `ray.init()` finds the shipped code, as for Ray's own jobs.

    The program's own `ray.init(runtime_env=...)` is merged and takes precedence.
    """
    if not code or _JOB_CONFIG in environ:
        return {}
    return {
        _JOB_CONFIG: json.dumps({"runtime_env": {"working_dir": code}}),
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": environ.get("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1"),
    }
