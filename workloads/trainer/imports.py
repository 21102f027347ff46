"""Imports of a training run, for an interpreter that stands by for the next attempt. No backend of JAX is created."""

import importlib
import os
import sys

from trainer.checkpoint import manager
from trainer.hosts import consistency
from xpk_shared.storage import BUCKET

_MODULES = (
    "trainer.main",
    "trainer.train",
    "trainer.checkpoint.stores.folder",
    "trainer.checkpoint.stores.ocdbt",
    "jax.experimental.serialize_executable",
)
_BUCKET_MODULES = ("trainer.checkpoint.stores.bucket", "trainer.checkpoint.stores.orbax_files")

for name in _MODULES:
    importlib.import_module(name)
if any(BUCKET in word for word in (*sys.argv, os.environ.get("XPK_OUTPUT_DIR", ""))):
    for name in (*_BUCKET_MODULES, "xpk_shared.storage.bucket"):
        importlib.import_module(name)
manager.orbax()
consistency.own_code()
