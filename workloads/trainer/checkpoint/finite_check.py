"""Check that a state is finite before it is saved.

A step's loss and gradient are computed before its update, which may overflow by itself.
"""

# mypy: disallow-untyped-calls=False

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.checkpoint.shards import names
from trainer.parallel.mesh import ALL
from trainer.step.programs import State


class Finite:
    """Checks a state on the chips before it is saved."""

    def __init__(self, mesh: Mesh, state: State) -> None:
        self._mesh, self._abstract = mesh, state
        self._compiled: Future[tuple[Any, bool]] | None = None
        self.names = [name for name, leaf in zip(names(state), jax.tree.leaves(state), strict=True) if _is_float(leaf)]

    def compile(self, compiled: Callable[[str, Any, State], tuple[Any, bool]]) -> None:
        """Start to compile the program with `compiled(name, program, arguments)`.

        Runs on a thread beside the steps, as nothing needs the program before the first save. Later calls do nothing.
        """
        if self._compiled is not None:
            return
        result = self._compiled = Future()

        def run() -> None:
            try:
                result.set_result(compiled("finite", finite_program(self._mesh, self._abstract), self._abstract))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, name="compile-finite", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """True if the program is compiled, so that `begin` does not wait."""
        return self._compiled is not None and self._compiled.done()

    def wait(self) -> bool:
        """Wait for the program; return whether it was cached. Raises its compilation's error."""
        assert self._compiled is not None, "compile comes first"
        return self._compiled.result()[1]

    def begin(self, state: State) -> Array:
        """Start the check; return bool [arrays], True for those in `names` that are not finite. All hosts call it."""
        assert self._compiled is not None, "compile comes first"
        broken: Array = self._compiled.result()[0](state)
        return broken


def finite_program(mesh: Mesh, abstract: State) -> Any:
    """Return the jitted function from a state to bool [arrays]: True for float arrays that are not finite."""
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, abstract)

    def check(state: State) -> Array:
        floats = filter(_is_float, jax.tree.leaves(state))
        is_broken_here = jnp.stack([~jnp.all(jnp.isfinite(leaf)) for leaf in floats])
        is_broken: Array = jax.lax.pmax(is_broken_here.astype(jnp.int32), ALL) > 0  # one collective for all arrays
        return is_broken

    return jax.jit(jax.shard_map(check, mesh=mesh, in_specs=(specs,), out_specs=P(), check_vma=False))


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
