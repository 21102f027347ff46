"""Format of an example: its numbers in a prepared file, and the items that its model counts. Does not need JAX."""

import dataclasses

from trainer.config import Model
from trainer.data.clicks import ClickFormat, click_format

LABEL_BYTES = 2  # little-endian, after the pixels of an image


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Format of an example, in the file and on the chips."""

    length: int  # numbers of one record
    stride: int  # numbers from the start of one record to the next; packed records start at a document
    dtype: str  # on the chips
    items: int  # tokens or images in a record, the unit of throughput
    noun: str  # name of an item
    below: int = 2**31  # upper bound (exclusive) of its tokens, or its label
    packed: bool = False  # the first half is tokens of whole documents, the second half their document numbers
    clicks: ClickFormat | None = None  # of a click log

    def count(self, numbers: int) -> int:
        """Return the number of records in a file of `numbers` numbers."""
        return max(0, (numbers - (self.length - self.stride)) // self.stride)

    def numbers(self, records: int) -> int:
        """Return the fewest numbers that make this many records."""
        return records * self.stride + self.length - self.stride


def record(model: Model) -> Record:
    """Return the format of the examples of `model`.

    decoder     seq_len tokens and the one after them, which is the first of the next record bert        seq_len tokens
    resnet      an image's pixels, row by row, red, green and blue, then its label; all of them bytes
    dlrm        a label, integers, and ids of categories (clicks.py)

    Packed records are whole documents, as many as fit, then as many numbers again: 1 for tokens of the first document,
    2 for the second, and so on, and 0 for padding.
    """
    if model.family == "resnet":
        length = 3 * model.image * model.image + LABEL_BYTES
        return Record(length, length, "uint8", 1, "image", model.classes)
    if model.family == "dlrm":
        form = click_format(model)
        return Record(form.length, form.length, "int32", 1, "example", clicks=form)
    tokens = model.seq_len + (1 if model.family == "decoder" else 0)
    length = 2 * tokens if model.packed else tokens
    return Record(length, model.seq_len, "int32", model.seq_len, "token", model.vocab, model.packed)
