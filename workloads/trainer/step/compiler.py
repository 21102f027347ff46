"""Compilation of programs on all hosts.

Process 0 compiles programs and shares them, while the other hosts wait. Executables that an earlier attempt has cached
are loaded (program_cache.py). Programs that cannot be loaded are compiled again; on TPU and on one CPU device JAX's
compilation cache is shared too (compile_cache.py). Without a secret to sign files with, all hosts compile at the same
time.

Emulated chips (many CPU devices) do not use JAX's cache, but cached executables in which the order of the collectives
follows from the data. For other programs XLA does not serialize that order, so chips would run collectives in different
orders and deadlock (collective_order.py). Every host compiles these, and waits until all have.
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
from trainer.step.collective_order import find_unordered
from trainer.step.compile_cache import CompileCache
from trainer.step.program_cache import Executables
from trainer.telemetry.metrics import say

# Measured on the tiny configuration with 16 emulated chips: half the compile time, equal step time.
QUICK_ON_CPU: dict[str, bool | int] = {"xla_backend_optimization_level": 1}
if jax.__version_info__ < (0, 11):  # newer ones always use the emitters, and reject the option
    QUICK_ON_CPU["xla_cpu_use_fusion_emitters"] = False
Compile = Callable[..., tuple[Any, bool]]  # as `Compiler.__call__`


class Compiler:
    """Compiler of the programs of one job."""

    def __init__(
        self, cache: CompileCache, peers: Peers, open_executables: Callable[[], Executables] | None = None
    ) -> None:
        """Compile with JAX's cache; `open_executables` returns the executables that earlier attempts have cached."""
        self._peers, self._cache = peers, cache
        self.loaded: set[str] = set()  # names of programs loaded as executables, not compiled or read from JAX's cache
        self._is_emulated = jax.devices()[0].platform == "cpu" and jax.device_count() > 1
        self._hits = 0
        self._own_work = OwnWork()
        self._is_shared = cache.is_shared or bool(os.environ.get("JAX_COMPILATION_CACHE_DIR"))
        # JAX does not write a program atomically: one thread must not share a file that another thread is writing.
        is_first = peers.process_id == 0 and cache.is_shared
        self._share_lock: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if is_first else contextlib.nullcontext()
        )
        self._executables = open_executables() if open_executables else None
        if self._is_emulated:
            jax.config.update("jax_enable_compilation_cache", False)
            return
        if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            jax.config.update("jax_compilation_cache_dir", str(cache.folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        # The key of XLA's own (GPU) caches includes write permission, so only process 0 would find a program.
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
            loaded = self._executables.load(name, arguments) if self._executables else None
        if self._is_emulated:
            compiled, loaded = self._emulate(name, program, arguments, loaded)
            return compiled, loaded is not None
        with self._own_work:
            lowered = None if loaded else program.lower(*arguments)
        if self._peers.process_id != 0 and self._is_shared:
            self._peers.await_(f"compiled/{name}")
        hits = self._hits
        with self._own_work, self._share_lock:
            self._cache.fetch()
            compiled = lowered.compile() if lowered else loaded
            if self._peers.process_id == 0:
                self._cache.share()
        if self._peers.process_id == 0:
            self._peers.announce(f"compiled/{name}", None)
            self._peers.await_(f"compiled/{name}")
            # XLA on CPU cannot serialize a program that it has read from JAX's cache: its functions would be missing.
            is_complete = self._hits == hits or jax.devices()[0].platform != "cpu"
            if self._executables and not loaded and is_complete:
                self._executables.keep(name, arguments, compiled)
        self.loaded |= {name} if loaded else set()
        return compiled, bool(loaded) or self._hits > hits

    def _emulate(self, name: str, program: Any, arguments: tuple[Any, ...], loaded: Any) -> tuple[Any, Any]:
        """Return (`program` compiled for emulated chips, the same if it was loaded, else None)."""
        is_first = self._peers.process_id == 0
        if self._executables and not is_first:
            self._peers.await_(f"compiled/{name}")
            with self._own_work:
                loaded = loaded or self._executables.load(name, arguments)
        with self._own_work:
            compiled = loaded or program.lower(*arguments).compile(QUICK_ON_CPU)
        if self._executables and is_first:
            if not loaded:
                self._keep(self._executables, name, arguments, compiled)
            self._peers.announce(f"compiled/{name}", None)
            self._peers.await_(f"compiled/{name}")
        self._peers.barrier(f"runnable/{name}")  # Gloo waits only 30 seconds for a host that still compiles
        self.loaded |= {name} if loaded else set()
        return compiled, loaded

    def _keep(self, executables: Executables, name: str, arguments: tuple[Any, ...], compiled: Any) -> None:
        """Cache a program of emulated chips, unless XLA would not serialize the order of its collectives."""
        with self._own_work:
            try:
                free = find_unordered(compiled.as_text())
            except (ValueError, LookupError) as error:
                say(f"the program {name!r} is not cached for a restart: {reason(error)[:100]}")
                return
            if not free:
                executables.keep(name, arguments, compiled)
                return
        one, other = free[0]
        cause = f"the order of {one} and {other} does not follow from data"
        say(f"the program {name!r} is not cached for a restart: {cause}")

    def _count(self, event: str, **_: Any) -> None:
        self._hits += event == "/jax/compilation_cache/cache_hits"
