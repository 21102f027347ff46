"""Format of the examples of a click log: a label, integers, and the ids of categories. Does not need NumPy.

An example is a list of integers of 32 bits: the label (0 or 1), D integers from 0, and then for each categorical
feature the number of its ids and H ids, of which those after that number are ignored.
"""

import dataclasses
import operator
import struct
from collections.abc import Sequence
from functools import lru_cache

from trainer.config import Model
from trainer.data.tokenizer import CLICKS

DTYPE = "uint32"  # of a prepared file
MAX_RANKED = 2**30 - 1  # examples of an evaluation: counts of pairs are twice as many, and int32
MAX_INTEGER = 2**31 - 1  # of an integer and an id, which are int32 on the chips


@dataclasses.dataclass(frozen=True, slots=True)
class ClickFormat:
    """Numbers of an example."""

    dense: int  # number of integers
    tables: tuple[int, ...]  # rows of the table of each categorical feature
    hots: tuple[int, ...]  # most ids of each categorical feature

    @property
    def length(self) -> int:
        """Number of integers of 32 bits in an example."""
        return 1 + self.dense + sum(1 + hots for hots in self.hots)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Place of each categorical feature's number of ids; its ids follow."""
        return tuple(1 + self.dense + sum(1 + hots for hots in self.hots[:nth]) for nth in range(len(self.hots)))

    @property
    def identity(self) -> str:
        """Name of the format, by which data that was prepared for another model is recognized."""
        hots = f" x {','.join(map(str, self.hots))}" if set(self.hots) != {1} else ""
        return f"{CLICKS}{self.dense}+{','.join(map(str, self.tables))}{hots}"

    def encode(self, label: int, dense: Sequence[int], ids: Sequence[Sequence[int]]) -> bytes:
        """Return an example as the bytes of a prepared file."""
        numbers = [label, *dense]
        for own_ids, hots in zip(ids, self.hots, strict=True):
            numbers += [len(own_ids), *own_ids, *[0] * (hots - len(own_ids))]
        return struct.pack(f"<{self.length}I", *numbers)

    def defect(self, numbers: Sequence[int]) -> str:
        """Return what is wrong with an example's numbers; empty if nothing is."""
        is_wrong = list(map(operator.gt, numbers, _limits(self)))
        if True not in is_wrong:
            return ""
        place = is_wrong.index(True)
        value = numbers[place]
        if place == 0:
            return f"label {value}, expected 0 or 1"
        if place <= self.dense:
            return f"integer {value} in dense feature {place}, expected 0 to {MAX_INTEGER}"
        nth = max(nth for nth, offset in enumerate(self.offsets) if offset <= place)
        if place == self.offsets[nth]:
            return f"{value} ids in categorical feature {nth + 1}, model.hots allows {self.hots[nth]}"
        return f"id {value} in categorical feature {nth + 1}, whose table has {self.tables[nth]} rows (model.tables)"


def click_format(model: Model) -> ClickFormat:
    """Return the format of the examples of a model."""
    return ClickFormat(model.dense_features, model.table_rows, model.table_hots)


@lru_cache(maxsize=16)
def _limits(form: ClickFormat) -> tuple[int, ...]:
    """Return the largest valid value of every number."""
    limits = [1, *[MAX_INTEGER] * form.dense]
    for rows, hots in zip(form.tables, form.hots, strict=True):
        limits += [hots, *[rows - 1] * hots]
    return tuple(limits)
