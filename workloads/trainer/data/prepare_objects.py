"""Preparation of a data set of images with objects: encoded images with their annotations, as documents (objects.py).

As with photographs, images are decoded when they are read, and the evaluation split comes last.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trainer.config import Model
from trainer.data.coco import CocoImage, CocoSource, Problems, read_source
from trainer.data.dataset import Corpus, open_source
from trainer.data.image_decoding import find_defect, image_size, require_pillow
from trainer.data.objects import category_problem, pack
from trainer.data.prepare import FILE_TOKENS, Writer, find_prepared, write_corpus
from trainer.data.tokenizer import OBJECTS
from xpk_shared.storage import Entry, Place

_THREADS, _AHEAD = 8, 64  # threads that check images, and images in memory


def prepare(
    source: str,
    out: Place,
    model: Model,
    max_bytes: int = 0,
    *,
    file_tokens: int = FILE_TOKENS,
    is_pinned: bool = False,
) -> Corpus:
    """Return the data set of the images in `source`; prepare it in the folder `out` if it is missing or outdated.

    `max_bytes` limits the training images; 0: all. `is_pinned` as for text (prepare.py). Raises FatalError without
    Pillow, and with all problems of the annotations and images.
    """
    folder = open_source(source)
    if isinstance(folder, Corpus):
        return folder
    request: dict[str, Any] = {"source": str(folder), "objects": OBJECTS, "max_bytes": max_bytes}
    request |= {"masks": True} if model.mask else {}
    corpus, notes = find_prepared(out, folder, request, file_tokens=file_tokens, is_pinned=is_pinned)
    if corpus is not None:
        return corpus
    require_pillow()
    problems = Problems()
    images = read_source(folder, problems, needs_masks=bool(model.mask))
    for problem in category_problem(f"data.path={source!r}", len(images.categories), model.classes):
        problems.add(problem.message, problem.hint)

    def write(writer: Writer) -> dict[str, Any]:
        _write(writer, images, images.training, problems, max_bytes)
        held_out = _write(writer, images, images.evaluation, problems)
        problems.check()
        return {"skipped": images.skipped, "held_out": held_out}

    return write_objects(out, notes, images.categories, file_tokens, write)


def write_objects(out: Place, notes: dict[str, Any], categories: Iterable[str], file_tokens: int, write: Any) -> Corpus:
    """Write a data set of the documents that `write` adds, with objects of these categories."""
    names = tuple(categories)
    notes = notes | {"dtype": "uint8", "vocab": 256, "tokenizer": OBJECTS, "classes": names, "categories": len(names)}
    return write_corpus(out, notes, file_tokens, write)


def _write(
    writer: Writer, source: CocoSource, images: tuple[CocoImage, ...], problems: Problems, max_bytes: int = 0
) -> int:
    """Add images until there are `max_bytes` (0: no limit); return their number. With problems, only check them."""
    count = size = 0
    for image, content, defect in _checked(source, images):
        if defect:
            problems.add(f"image {str(source.folder / image.name)!r} {defect}", "Replace or remove it")
        if not problems:
            writer.add(pack(content, image.annotated))
        count, size = count + 1, size + len(content)
        if 0 < max_bytes <= size:
            break
    return count


def _checked(source: CocoSource, images: tuple[CocoImage, ...]) -> Iterator[tuple[CocoImage, bytes, str]]:
    """Yield each image with its content and its defect, checked ahead on several threads."""
    entries = (Entry(image.name, 0, 0) for image in images)
    contents = zip(images, source.folder.read_each(entries, ()), strict=True)
    pool, pending = ThreadPoolExecutor(_THREADS, "check"), deque[tuple[CocoImage, bytes, "Future[str]"]]()
    try:
        while True:
            for image, content in itertools.islice(contents, _AHEAD - len(pending)):
                pending.append((image, content or b"", pool.submit(_defect, image, content or b"")))
            if not pending:
                return
            image, content, future = pending.popleft()
            yield image, content, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _defect(image: CocoImage, content: bytes) -> str:
    """Return what is wrong with an image, or an empty string."""
    if cause := find_defect(content):
        return f"is damaged: {cause}"
    size, expected = image_size(content), (image.annotated.width, image.annotated.height)
    if size == expected:
        return ""
    return f"has {size[0]} x {size[1]} pixels, but its annotations are of {expected[0]} x {expected[1]}"
