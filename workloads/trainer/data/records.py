"""What one example is: how many numbers of a prepared file, and what its model counts. Without JAX."""

import dataclasses

from trainer.config import Model

LABEL_BYTES = 2  # little-endian, behind the pixels of an image


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """An example as it lies in the file and goes to the chips."""

    length: int  # numbers of one record
    stride: int  # numbers from the beginning of one record to that of the next; packed ones begin at a document
    dtype: str  # that it is sent to the chips as
    items: int  # tokens or images of one record: what speed is told in
    noun: str  # of those items
    below: int = 2**31  # what each of its tokens, or its label, has to be
    packed: bool = False  # half of its numbers are tokens, of whole documents; the rest says which document each is of

    def count(self, numbers: int) -> int:
        """How many records a file of `numbers` numbers has."""
        return max(0, (numbers - (self.length - self.stride)) // self.stride)

    def numbers(self, records: int) -> int:
        """Fewest numbers that make so many records."""
        return records * self.stride + self.length - self.stride


def record(model: Model) -> Record:
    """Return what an example of `model` is.

    decoder     seq_len tokens and the one after them, which is the first of the next record
    bert        seq_len tokens
    resnet      an image's pixels, row by row, red, green and blue, then its label; all of them bytes

    Packed ones are whole documents, as many as fit, then as many numbers again: 1 for tokens of the first document,
    2 for the second, and so on, and 0 where there is no token.
    """
    if model.family == "resnet":
        length = 3 * model.image * model.image + LABEL_BYTES
        return Record(length, length, "uint8", 1, "image", model.classes)
    tokens = model.seq_len + (1 if model.family == "decoder" else 0)
    length = 2 * tokens if model.packed else tokens
    return Record(length, model.seq_len, "int32", model.seq_len, "token", model.vocab, model.packed)
