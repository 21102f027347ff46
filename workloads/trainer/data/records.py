"""Format of an example: its numbers in a prepared file, and the items that its model counts. Does not need JAX."""

import dataclasses
import enum

from trainer.config import DETECTION_FAMILIES, TRANSLATION_FAMILIES, Model
from trainer.data.clicks import ClickFormat, click_format
from trainer.data.objects import object_format

SEGMENT_NUMBERS = 3  # after a pair of segments: the ends of both, and 1 if the second follows the first
LABEL_BYTES = 2  # little-endian, after the pixels of an image
PADDING, END, FIRST_TOKEN = 0, 1, 2  # numbers of a translation's record: token n is FIRST_TOKEN + n


class Kind(enum.StrEnum):
    """Kind of the examples, which decides how they are prepared, checked and read; the values are for messages."""

    TEXT = "running text"
    SEGMENTS = "pairs of segments"
    TRANSLATIONS = "pairs of sentences"
    IMAGES = "images"
    OBJECTS = "images with objects"
    CLICKS = "click logs"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Format of an example, in the file and on the chips."""

    length: int  # numbers of one record
    stride: int  # numbers from the start of one record to the next; packed records start at a document
    dtype: str  # on the chips
    items: int  # tokens, images, pairs or examples in a record, the unit of throughput
    noun: str  # name of an item
    below: int = 2**31  # upper bound (exclusive) of its tokens, or its label
    packed: bool = False  # as many whole documents, or pairs of sentences, as fit
    kind: Kind = Kind.TEXT
    clicks: ClickFormat | None = None  # of a click log

    @property
    def has_documents(self) -> bool:
        """True if a record is whole documents of a file, so that its index has the record's bounds."""
        return self.packed or self.kind is Kind.TRANSLATIONS

    def count(self, numbers: int) -> int:
        """Return the number of records in a file of `numbers` numbers."""
        return max(0, (numbers - (self.length - self.stride)) // self.stride)

    def numbers(self, records: int) -> int:
        """Return the fewest numbers that make this many records."""
        return records * self.stride + self.length - self.stride


def record(model: Model) -> Record:
    """Return the format of the examples of `model`.

    decoder     seq_len tokens and the one after them, which is the first of the next record
    bert        seq_len tokens; with model.next_sentence, of two segments, then SEGMENT_NUMBERS numbers
    resnet      an image's pixels, row by row, red, green and blue, then its label; all of them bytes
    ssd, mask_rcnn   an image's pixels, boxes and bitmaps, all of them bytes (objects.py)
    transformer, gnmt   a sentence and its translation, each with END and padded to seq_len numbers; packed: several
    dlrm        a label, integers, and ids of categories (clicks.py)

    Packed records of text are whole documents, as many as fit, then as many numbers again: 1 for tokens of the first
    document, 2 for the second, and so on, and 0 for padding.
    """
    if model.family == "resnet":
        length = 3 * model.image * model.image + LABEL_BYTES
        return Record(length, length, "uint8", 1, "image", model.classes, kind=Kind.IMAGES)
    if model.family in DETECTION_FAMILIES:
        length = object_format(model).length
        return Record(length, length, "uint8", 1, "image", model.classes, kind=Kind.OBJECTS)
    if model.family in TRANSLATION_FAMILIES:
        length = 2 * model.seq_len
        noun = "example" if model.packed else "pair"
        return Record(length, length, "int32", 1, noun, model.vocab, model.packed, kind=Kind.TRANSLATIONS)
    if model.family == "dlrm":
        form = click_format(model)
        return Record(form.length, form.length, "int32", 1, "example", kind=Kind.CLICKS, clicks=form)
    if model.next_sentence:
        length = model.seq_len + SEGMENT_NUMBERS
        return Record(length, length, "int32", model.seq_len, "token", model.vocab, kind=Kind.SEGMENTS)
    tokens = model.seq_len + (1 if model.family == "decoder" else 0)
    length = 2 * tokens if model.packed else tokens
    return Record(length, model.seq_len, "int32", model.seq_len, "token", model.vocab, model.packed)
