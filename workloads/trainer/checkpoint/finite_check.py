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
        self._made: Future[tuple[Any, bool]] | None = None
        self.names = [name for name, leaf in zip(names(state), jax.tree.leaves(state), strict=True) if _is_float(leaf)]

    def compile(self, compiled: Callable[[str, Any, State], tuple[Any, bool]]) -> None:
        """Start to compile the program with `compiled(name, program, arguments)`.

        Runs on a thread beside the steps, as nothing needs the program before the first save. Later calls do nothing.
        """
        if self._made is not None:
            return
        made = self._made = Future()

        def work() -> None:
            try:
                made.set_result(compiled("finite", finite_program(self._mesh, self._abstract), self._abstract))
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=work, name="compile-finite", daemon=True).start()

    @property
    def ready(self) -> bool:
        """True if the program is compiled, so that `begin` does not wait."""
        return self._made is not None and self._made.done()

    def wait(self) -> bool:
        """Wait for the program; return whether it was cached. Raises its compilation's error."""
        assert self._made is not None, "compile comes first"
        return self._made.result()[1]

    def begin(self, state: State) -> Array:
        """Start the check; return bool [arrays], True for those in `names` that are not finite. All hosts call it."""
        assert self._made is not None, "compile comes first"
        broken: Array = self._made.result()[0](state)
        return broken


def finite_program(mesh: Mesh, abstract: State) -> Any:
    """Return the jitted function from a state to bool [arrays]: True for float arrays that are not finite."""
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, abstract)

    def look(state: State) -> Array:
        floats = filter(_is_float, jax.tree.leaves(state))
        here = jnp.stack([~jnp.all(jnp.isfinite(leaf)) for leaf in floats])
        is_broken: Array = jax.lax.pmax(here.astype(jnp.int32), ALL) > 0  # one collective for all arrays
        return is_broken

    return jax.jit(jax.shard_map(look, mesh=mesh, in_specs=(specs,), out_specs=P(), check_vma=False))


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
