"""Compilation of programs on all hosts, as fast as their platform safely allows.

Process 0 compiles and shares what it has compiled, while the other hosts wait for it. Programs that an attempt has
kept are loaded whole (program_cache.py). Those that hosts cannot load are compiled again; on TPU and on one CPU device
JAX's compilation cache is shared too (compile_cache.py). Without a secret to sign with, all hosts compile at the same
time.

Emulated chips (many CPU devices) use no JAX cache, but programs kept whole: those in which the order of the
collectives follows from the data. XLA forgets the order of others when it writes them, so that chips deadlock in
different ones (collective_order.py).
"""

# mypy: disallow-untyped-calls=False

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import jax

from trainer.errors import reason
from trainer.hosts.own_work import OwnWork
from trainer.hosts.peers import Peers
from trainer.step.collective_order import unordered
from trainer.step.compile_cache import CompileCache
from trainer.step.program_cache import Executables
from trainer.telemetry.metrics import say

# Measured on the tiny configuration with 16 emulated chips: half the compile time, equal step time.
_QUICK_ON_CPU = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
Compile = Callable[..., tuple[Any, bool]]  # as `Compiler.__call__`


class Compiler:
    """Compiler of the programs of one job."""

    def __init__(self, cache: CompileCache, peers: Peers, kept: Callable[[], Executables] | None = None) -> None:
        """Compile with JAX's cache; `kept` returns the executables that earlier attempts have cached."""
        self._peers, self._cache = peers, cache
        self.loaded: set[str] = set()  # names of programs loaded as executables, not compiled or read from JAX's cache
        self._emulated = jax.devices()[0].platform == "cpu" and jax.device_count() > 1
        self._hits = 0
        self._own_work = OwnWork()
        self._shared = cache.is_shared or bool(os.environ.get("JAX_COMPILATION_CACHE_DIR"))
        # JAX writes a program bit by bit: one thread must not share what another is writing.
        first = peers.process_id == 0 and cache.is_shared
        self._one: contextlib.AbstractContextManager[Any] = threading.Lock() if first else contextlib.nullcontext()
        self._kept = kept() if kept else None
        if self._emulated:
            jax.config.update("jax_enable_compilation_cache", False)
            return
        if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            jax.config.update("jax_compilation_cache_dir", str(cache.folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        # XLA's own (GPU) caches put the right to write into the key: only process 0 would find a program.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
        jax.monitoring.register_event_listener(self._count)

    @property
    def busy(self) -> bool:
        """True if this host itself compiles or loads a program, rather than waiting for process 0."""
        return self._own_work.busy

    def __call__(self, name: str, program: Any, *arguments: Any) -> tuple[Any, bool]:
        """Return (`program` compiled for arguments like these, whether another host or attempt had compiled it).

        Every host must call this with the same names; several threads may, each with its own.
        """
        with self._own_work:
            loaded = self._kept.load(name, arguments) if self._kept else None
        if self._emulated:
            compiled, loaded = self._emulate(name, program, arguments, loaded)
            return compiled, loaded is not None
        with self._own_work:
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
            if self._kept and not loaded:
                self._kept.keep(name, arguments, compiled)
        self.loaded |= {name} if loaded else set()
        return compiled, bool(loaded) or self._hits > hits

    def _emulate(self, name: str, program: Any, arguments: tuple[Any, ...], loaded: Any) -> tuple[Any, Any]:
        """Return (`program` compiled for emulated chips, the same if it was loaded, else None)."""
        first = self._peers.process_id == 0
        if self._kept and not first:
            self._peers.await_(f"compiled/{name}")
            with self._own_work:
                loaded = loaded or self._kept.load(name, arguments)
        with self._own_work:
            compiled = loaded or program.lower(*arguments).compile(_QUICK_ON_CPU)
        if self._kept and first:
            if not loaded:
                self._keep(self._kept, name, arguments, compiled)
            self._peers.announce(f"compiled/{name}", None)
            self._peers.await_(f"compiled/{name}")
        self.loaded |= {name} if loaded else set()
        return compiled, loaded

    def _keep(self, kept: Executables, name: str, arguments: tuple[Any, ...], compiled: Any) -> None:
        """Keep a program of emulated chips, unless XLA would lose the order of its collectives."""
        with self._own_work:
            try:
                free = unordered(compiled.as_text())
            except (ValueError, LookupError) as error:
                say(f"the program {name!r} is not cached for a restart: {reason(error)[:100]}")
                return
            if not free:
                kept.keep(name, arguments, compiled)
                return
        one, other = free[0]
        say(f"the program {name!r} is not cached for a restart: no data puts {one} and {other} into an order")

    def _count(self, event: str, **_: Any) -> None:
        self._hits += event == "/jax/compilation_cache/cache_hits"
