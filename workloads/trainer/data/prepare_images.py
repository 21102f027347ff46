"""Preparation of a data set of photographs: their encoded bytes and labels, as documents of a prepared data set.

The images are decoded when they are read (image_decoding.py), so a data set is as large as its source, and is read,
checked, cached and shared by hosts as text is. The evaluation split comes last.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trainer.data.dataset import (
    Corpus,
    open_source,
)
from trainer.data.image_decoding import find_defect, require_pillow
from trainer.data.image_sources import LabeledImage, find_images
from trainer.data.prepare import FILE_TOKENS, Writer, find_prepared, write_corpus
from trainer.data.records import LABEL_BYTES
from trainer.data.tokenizer import JPEG
from trainer.errors import FatalError, Problem
from xpk_shared.storage import Place

_THREADS, _AHEAD = 8, 64  # threads that check images, and images in memory
_MAX_LABEL = (1 << 8 * LABEL_BYTES) - 1


def prepare(
    source: str, out: Place, max_bytes: int = 0, *, file_tokens: int = FILE_TOKENS, is_pinned: bool = False
) -> Corpus:
    """Return the data set of the photographs in `source`; prepare it in the folder `out` if it is missing or outdated.

    `max_bytes` limits the training images; 0: all. `is_pinned` as for text (prepare.py). Raises FatalError without
    Pillow, and for the first image that is damaged or has no valid label.
    """
    folder = open_source(source)
    if isinstance(folder, Corpus):
        return folder
    request: dict[str, Any] = {"source": str(folder), "images": JPEG, "max_bytes": max_bytes}
    corpus, notes = find_prepared(out, folder, request, file_tokens=file_tokens, is_pinned=is_pinned)
    if corpus is not None:
        return corpus
    require_pillow()
    images = find_images(folder)
    notes |= {"dtype": "uint8", "vocab": 256, "tokenizer": JPEG, "classes": images.classes}

    def write(writer: Writer) -> dict[str, Any]:
        _write(writer, images.images(images.training), max_bytes)
        return {"skipped": 0, "held_out": _write(writer, images.images(images.evaluation))}

    return write_corpus(out, notes, file_tokens, write)


def _write(writer: Writer, images: Iterator[LabeledImage], max_bytes: int = 0) -> int:
    """Add images until there are `max_bytes` (0: no limit); return their number. Raises FatalError for a bad one."""
    count = size = 0
    for image, defect in _checked(images):
        if defect:
            raise FatalError(Problem(f"image {image.name!r} is damaged: {defect}", "Replace or remove it"))
        if image.label > _MAX_LABEL:
            message = f"image {image.name!r} has label {image.label}, the largest is {_MAX_LABEL}"
            raise FatalError(Problem(message, "Number labels from 0"))
        writer.add(image.content + image.label.to_bytes(LABEL_BYTES, "little"))
        count, size = count + 1, size + len(image.content)
        if 0 < max_bytes <= size:
            break
    return count


def _checked(images: Iterator[LabeledImage]) -> Iterator[tuple[LabeledImage, str]]:
    """Yield each image with its defect, checked ahead on several threads."""
    pool, pending = ThreadPoolExecutor(_THREADS, "check"), deque[tuple[LabeledImage, "Future[str]"]]()
    try:
        while True:
            for image in itertools.islice(images, _AHEAD - len(pending)):
                pending.append((image, pool.submit(find_defect, image.content)))
            if not pending:
                return
            image, future = pending.popleft()
            yield image, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
