"""Compilation of programs on all hosts, as fast as their platform safely allows.

On TPU, process 0 compiles first and shares its compilation cache; the other hosts and later attempts read it
(compile_cache.py). Without sharing, all hosts compile at the same time. Emulated chips (many CPU devices) must not
share: a CPU binary read from the cache has lost the order of its collectives (jaxlib 0.10.2), so that chips eventually
deadlock in different ones. There every host compiles for itself, without the optimizations that take longer than they
save, and no program is cached.
"""

# mypy: disallow-untyped-calls=False

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import jax

from trainer.hosts.own_work import OwnWork
from trainer.hosts.peers import Peers
from trainer.step.compile_cache import CompileCache
from trainer.step.program_cache import Executables

# Measured on the tiny configuration with 16 emulated chips: half the compile time, equal step time.
_QUICK_ON_CPU = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
Compile = Callable[..., tuple[Any, bool]]  # as `Compiler.__call__`
_KEPT = ("train", "evaluate")  # needed by every attempt, and slow to compile


class Compiler:
    """Compiler of the programs of one job."""

    def __init__(self, cache: CompileCache, peers: Peers, kept: Callable[[], Executables] | None = None) -> None:
        """Compile with JAX's cache; `kept` returns the executables that earlier attempts have cached."""
        self._peers, self._cache = peers, cache
        self.loaded: set[str] = set()  # names of programs loaded as executables, not compiled or read from JAX's cache
        self._kept: Executables | None = None
        self._emulated = jax.devices()[0].platform == "cpu" and jax.device_count() > 1
        self._hits = 0
        self._own_work = OwnWork()
        self._shared = cache.is_shared or bool(os.environ.get("JAX_COMPILATION_CACHE_DIR"))
        # JAX writes a program bit by bit: one thread must not share what another is writing.
        first = peers.process_id == 0 and cache.is_shared
        self._one: contextlib.AbstractContextManager[Any] = threading.Lock() if first else contextlib.nullcontext()
        if self._emulated:
            jax.config.update("jax_enable_compilation_cache", False)
            return
        if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            jax.config.update("jax_compilation_cache_dir", str(cache.folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        # XLA's own (GPU) caches put the right to write into the key: only process 0 would find a program.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
        jax.monitoring.register_event_listener(self._count)
        self._kept = kept() if kept else None

    @property
    def busy(self) -> bool:
        """True if this host itself compiles or loads a program, rather than waiting for process 0."""
        return self._own_work.busy

    def __call__(self, name: str, program: Any, *arguments: Any) -> tuple[Any, bool]:
        """Return (`program` compiled for arguments like these, whether an earlier attempt had compiled it).

        Every host must call this with the same names; several threads may, each with its own.
        """
        if self._emulated:
            with self._own_work:
                return program.lower(*arguments).compile(_QUICK_ON_CPU), False
        kept = self._kept if name in _KEPT else None
        with self._own_work:
            loaded = kept.load(name, arguments) if kept else None
            lowered = None if loaded else program.lower(*arguments)
        if self._peers.process_id != 0 and self._shared:
            self._peers.await_(f"compiled/{name}")
        hits = self._hits
        with self._own_work, self._one:
            self._cache.fetch()
            compiled = lowered.compile() if lowered else loaded
            if self._peers.process_id == 0:
                self._cache.share()
        if self._peers.process_id == 0:
            self._peers.announce(f"compiled/{name}", None)
            self._peers.await_(f"compiled/{name}")
            if kept and not loaded:
                kept.keep(name, arguments, compiled)
        self.loaded |= {name} if loaded else set()
        return compiled, bool(loaded) or self._hits > hits

    def _count(self, event: str, **_: Any) -> None:
        self._hits += event == "/jax/compilation_cache/cache_hits"
