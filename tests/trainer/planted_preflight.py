"""The trainer's preflight with a fault in one host: `python -m tests.trainer.planted_preflight FAULT:SLICE/HOST ...`.

That host does what a broken machine would; the others run the preflight as it is:

    bit      one bit of a product in bfloat16 is wrong on its second chip
    integer  one bit of a product in int8 is wrong on its first chip
    memory   one bit of its second chip's memory is wrong
    chip     its products take four seconds longer
    link     its exchanges with other hosts take four seconds longer
    data     its exchanges return other data
    clock    its clock is an hour ahead
    disk     its disk is full
    dns      it cannot resolve names
    hang     its check of the memory never ends
"""

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_LONG_SECONDS = 4.0


def flipped(array: Any, chip: int) -> Any:
    """Return an array, split over the chips along its first axis, with one wrong bit in one chip's part."""
    import jax
    import numpy as np

    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    parts = [np.array(shard.data) for shard in shards]
    parts[chip].reshape(-1).view(np.uint32)[7] ^= 1
    placed = [jax.device_put(part, shard.device) for part, shard in zip(parts, shards, strict=True)]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)


def _replace(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(module, name, make(getattr(module, name)))


def _plant_product(dtype: str, chip: int) -> None:
    from trainer.preflight import chips

    def wrong(check: Any, real: Any) -> Any:
        def multiply(a: Any, b: Any) -> Any:
            product = real(a, b)
            return flipped(product, chip) if a.dtype == dtype else product

        return multiply

    _replace(chips, "check_products", lambda real: lambda check: real(check, wrong(check, chips.multiply)))


def _plant_memory() -> None:
    from trainer.preflight import chips

    def write(rows: int, salt: int) -> Any:
        return flipped(chips.write_pattern(rows, salt), 1)

    _replace(chips, "check_memory", lambda real: lambda: real(write))


def _plant_slow_chip() -> None:
    from trainer.preflight import chips

    def slow(a: Any, b: Any) -> Any:
        time.sleep(_LONG_SECONDS)
        return chips.multiply(a, b)

    _replace(chips, "_RUNS", lambda _: 1)
    _replace(chips, "_PRODUCTS", lambda _: 1)
    _replace(chips, "check_products", lambda real: lambda check: real(check, slow))


def _plant_link(*, is_slow: bool) -> None:
    from trainer.preflight.links import Exchange

    def prepare(real: Any) -> Any:
        def prepared(self: Exchange, pairs: Any) -> Any:
            once = real(self, pairs)

            def exchange() -> float:
                time.sleep(_LONG_SECONDS)
                return float(once() + _LONG_SECONDS)

            return exchange if is_slow else once

        return prepared

    _replace(Exchange, "prepare", prepare)
    if not is_slow:
        _replace(Exchange, "is_right", lambda _: lambda *arguments: False)


def _plant_clock() -> None:
    from trainer.preflight import machine

    _replace(machine, "compare_clocks", lambda real: lambda peers: real(peers, lambda: time.time() + 3600))


def _plant_disk() -> None:
    def full(_descriptor: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _replace(os, "fsync", lambda _: full)


def _plant_dns() -> None:
    from trainer.preflight import machine

    def unknown(*_arguments: Any, **_named: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    _replace(socket, "getaddrinfo", lambda _: unknown)
    _replace(machine, "check_name", lambda real: lambda coordinator, say: real(coordinator, say, timeout=0.5))


def _plant_hang() -> None:
    from trainer.preflight import chips

    _replace(chips, "check_memory", lambda real: lambda: threading.Event().wait())


FAULTS: dict[str, Callable[[], None]] = {
    "bit": lambda: _plant_product("bfloat16", 1),
    "integer": lambda: _plant_product("int8", 0),
    "memory": _plant_memory,
    "chip": _plant_slow_chip,
    "link": lambda: _plant_link(is_slow=True),
    "data": lambda: _plant_link(is_slow=False),
    "clock": _plant_clock,
    "disk": _plant_disk,
    "dns": _plant_dns,
    "hang": _plant_hang,
}


def main() -> None:
    """Plant the fault if this is the host, and run the trainer's command."""
    from trainer.main import main as run_trainer

    fault, _, place = sys.argv[1].partition(":")
    if place == f"{os.environ['MEGASCALE_SLICE_ID']}/{os.environ['TPU_WORKER_ID']}":
        FAULTS[fault]()
    run_trainer(sys.argv[2:])


if __name__ == "__main__":
    main()
