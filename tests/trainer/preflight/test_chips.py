"""Known answers of chips: one wrong bit is noticed, on the right chip."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.planted_preflight import flipped
from trainer.preflight import chips
from trainer.preflight.checks import Check


@pytest.mark.parametrize("check", [Check.BF16, Check.INT8])
def test_the_expected_product_is_exact(check: Check) -> None:
    a_IK, b_KJ, expected_IJ = chips.factors(check, 300, 2)
    assert np.array_equal(a_IK.astype(np.int64) @ b_KJ.astype(np.int64), expected_IJ)
    assert len(np.unique(a_IK)) > 100 if check is Check.INT8 else len(np.unique(a_IK)) > 50


def test_sums_of_bfloat16_products_are_exact_in_any_order() -> None:
    a_IK, b_KJ, _ = chips.factors(Check.BF16, chips.PERIOD, 16)
    assert np.abs(a_IK).max() < 2**8  # exact in bfloat16
    assert (np.abs(a_IK).astype(np.int64) @ np.abs(b_KJ).astype(np.int64)).max() < 2**24  # exact in float32


@pytest.mark.parametrize("check", [Check.BF16, Check.INT8])
def test_healthy_chips_pass_and_one_wrong_bit_fails_its_chip(check: Check) -> None:
    assert chips.check_products(check).problem == ""

    def wrong(a: jax.Array, b: jax.Array) -> Any:
        return flipped(chips.multiply(a, b), 5)

    assert chips.check_products(check, wrong).problem == "chip 5: 1 of 65,536 values are wrong"


def test_memory_passes_and_one_wrong_bit_fails_its_chip() -> None:
    result = chips.check_memory()
    assert result.passed
    assert result.detail == "0.00391 GiB of each of 8 chips"
    damaged = chips.check_memory(lambda rows, salt: flipped(chips.write_pattern(rows, salt), 2))
    assert damaged.problem == "chip 2: 2 words of 4 bytes are wrong"


def test_a_bit_that_is_stuck_at_one_fails_once() -> None:
    def stuck(rows: int, salt: int) -> Any:
        pattern = chips.write_pattern(rows, salt)
        parts = [np.array(shard.data) for shard in pattern.addressable_shards]
        parts[3][0, 0, 9] |= 1
        placed = [
            jax.device_put(part, shard.device) for part, shard in zip(parts, pattern.addressable_shards, strict=True)
        ]
        return jax.make_array_from_single_device_arrays(pattern.shape, pattern.sharding, placed)

    assert chips.check_memory(stuck).problem == "chip 3: 1 words of 4 bytes are wrong"
