"""Checks of the training data against the configuration, before it is prepared and after."""

from trainer.config import DETECTION_FAMILIES, TRANSLATION_FAMILIES, Config
from trainer.data.clicks import DTYPE, MAX_RANKED
from trainer.data.coco import check_objects
from trainer.data.dataset import (
    Corpus,
    empty,
    eval_records,
    missing,
    missing_files,
    open_corpus,
    refuse_prepared,
    unset,
    vocabulary_problem,
)
from trainer.data.image_sources import check_images
from trainer.data.objects import category_problem
from trainer.data.records import FIRST_TOKEN, Kind, record
from trainer.data.sources import (
    SEPARATOR,
    is_translated_text,
    looks_like_text,
    source_place,
    source_suffixes,
    text_files,
)
from trainer.data.tokenizer import BYTES, identity, is_vocabulary
from trainer.errors import FatalError, Problem, reason
from trainer.former_names import SYNTHETIC
from xpk_shared.storage import Place

SYNTHETIC_CLASSES, SYNTHETIC_CATEGORIES = 10, 3
_IMAGE_KINDS = (Kind.IMAGES, Kind.OBJECTS)


def setting_problems(config: Config) -> list[Problem]:
    """Return the settings of the data that do not fit the kind of data that the model reads."""
    data, kind, problems = config.data, record(config.model).kind, list[Problem]()
    reads = f"{config.model.family} reads {kind}"
    if is_translated_text(data.path, data.target) and kind is not Kind.TRANSLATIONS:
        name = "data.target" if data.target else f"data.path={data.path!r}"
        message = f"{name} requires a model that translates, but {reads}"
        problems.append(Problem(message, "Use --config transformer or gnmt, or other data"))
    if data.tokenizer and kind in (*_IMAGE_KINDS, Kind.CLICKS):
        problems.append(Problem(f"data.tokenizer is not supported: {reads}", "Omit the tokenizer"))
    if data.suffixes and kind in (*_IMAGE_KINDS, Kind.TRANSLATIONS):
        problems.append(Problem(f"data.suffixes is not supported: {reads}", "Omit the suffixes"))
    if data.path == SYNTHETIC:
        problems += _synthetic_problems(config)
    return problems


def check_source(config: Config, batch: int) -> list[Problem]:
    """Return the problems of `data.path`, reading as little as possible (the beginnings of files)."""
    path, target = config.data.path, config.data.target
    if not path:
        return [unset()]
    try:
        if (problems := setting_problems(config)) or path == SYNTHETIC:
            return problems
        source = source_place(path)
        if is_translated_text(path, target):
            return missing_files(path, target)
        if source.is_file():
            return _corpus_problems(config, open_corpus(source), batch)
        return _check_folder(config, source, batch) if source.is_folder() else [missing(path)]
    except FatalError as error:
        return list(error.problems)
    except OSError as error:
        return [Problem(f"data.path={path!r} cannot be read: {reason(error)}", "Use a readable path")]


def check_corpus(config: Config, corpus: Corpus, records: int, batch: int) -> None:
    """Raise FatalError if there are fewer records than a batch, or tokens outside the model's vocabulary."""
    problems, example = setting_problems(config) + _corpus_problems(config, corpus, batch), record(config.model)
    held_out = eval_records(config, corpus, records)
    if example.kind is Kind.CLICKS and held_out > MAX_RANKED:
        message = f"{held_out:,} examples are held out for evaluation, but at most {MAX_RANKED:,} can be ranked"
        problems.append(Problem(message, "Use a lower data.eval_fraction"))
    trained, needed = records - held_out, max(batch, config.data.shards)
    if not problems and trained < needed:
        message = f"data.path={config.data.path!r} has {trained:,} examples to train on, but one batch needs {needed:,}"
        more, less = "Add text", "lower data.global_batch or model.seq_len"
        if example.kind is Kind.TRANSLATIONS:
            more, less = "Use a larger data set or model.seq_len", "lower data.global_batch"
        elif example.kind in (*_IMAGE_KINDS, Kind.CLICKS):
            more, less = "Use a larger data set", "lower data.global_batch"
        problems.append(Problem(message, f"{more}, or {less}"))
    if problems:
        raise FatalError(*problems)


def _check_folder(config: Config, source: Place, batch: int) -> list[Problem]:
    """Return the problems of a folder of sources, which process 0 prepares."""
    kind = record(config.model).kind
    if kind is Kind.TRANSLATIONS:
        return [_no_translations(config)]
    if kind is Kind.CLICKS:  # its lines are checked when it is prepared
        return []
    if kind is Kind.IMAGES:
        is_text = config.data.path == "stdlib"
        return [_no_images(config)] if is_text else check_images(source, config.model.classes)
    if kind is Kind.OBJECTS:  # its annotations are checked when it is prepared
        return check_objects(source)
    if kind is Kind.SEGMENTS and not is_vocabulary(config.data.tokenizer):
        return [vocabulary_problem()]
    return _check_text(config, source, batch)


def _check_text(config: Config, source: Place, batch: int) -> list[Problem]:
    """Check the size in bytes; process 0 checks the number of tokens, which may be smaller, when it prepares them."""
    refuse_prepared(source)
    needed, tokens, skipped = _needed_tokens(config, batch), 0, 0
    suffixes = source_suffixes(config.data.path, config.data.suffixes)
    identity(config.data.tokenizer)
    for entry in text_files(source, suffixes):
        if not entry.size or not looks_like_text(source / entry.name):
            skipped += 1
            continue
        tokens += entry.size + len(SEPARATOR)
        if tokens >= needed:
            return []
        if 0 < config.data.max_bytes <= tokens:
            break
    if not tokens:
        return [empty(config.data.path, suffixes, skipped)]
    return [_small(config.data.path, tokens, needed)]


def _needed_tokens(config: Config, batch: int) -> int:
    """Return the fewest tokens that leave one whole batch to train on; records of documents may need any number."""
    example = record(config.model)
    if example.has_documents:
        return 1
    fraction = config.data.eval_fraction
    records = max(batch, int((batch - 1) / (1 - fraction)))
    while records - int(records * fraction) < batch:
        records += 1
    return example.numbers(records)


def _synthetic_problems(config: Config) -> list[Problem]:
    kind = record(config.model).kind
    if kind in (Kind.TEXT, Kind.SEGMENTS):
        message = (
            f"data.path={SYNTHETIC} has images, scenes, translations or clicks, but {config.model.family} reads {kind}"
        )
        return [Problem(message, "Use another model.family, such as model.family=resnet, or a folder of text")]
    if kind is Kind.IMAGES and config.model.classes < SYNTHETIC_CLASSES:
        message = f"data.path={SYNTHETIC} has {SYNTHETIC_CLASSES} classes, but model.classes is {config.model.classes}"
        return [Problem(message, f"Use --set model.classes={SYNTHETIC_CLASSES} or more")]
    if kind is Kind.OBJECTS:
        return category_problem(f"data.path={SYNTHETIC}", SYNTHETIC_CATEGORIES, config.model.classes)
    return []


def _corpus_problems(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    """Return the problems of a prepared data set with this model."""
    kind = record(config.model).kind
    if kind is Kind.CLICKS:
        return _click_problems(config, corpus, batch)
    if corpus.has_objects or kind is Kind.OBJECTS:
        return _object_problems(config, corpus, batch)
    if corpus.has_photographs:
        return _photograph_problems(config, corpus, batch)
    problems = _image_problems(config, corpus) if kind is Kind.IMAGES else _text_kind_problems(config, corpus)
    tokenizer = identity(config.data.tokenizer) if config.data.tokenizer else corpus.tokenizer
    if tokenizer != corpus.tokenizer:
        message = f"{corpus.path!r} was prepared with tokenizer {corpus.tokenizer}, but data.tokenizer is {tokenizer}"
        problems.append(Problem(message, "Use the tokenizer that it was prepared with, or prepare it again"))
    if config.model.packed and not all(file.index for file in corpus.files):
        message = f"model.packed requires the ends of documents, which {corpus.path!r} does not have"
        problems.append(Problem(message, "Prepare it again, or use --set model.packed=false"))
    needed = _needed_tokens(config, batch)
    if corpus.tokens < needed:
        problems.append(_small(config.data.path, corpus.tokens, needed))
    return problems + _vocabulary_problems(config, corpus)


def _vocabulary_problems(config: Config, corpus: Corpus) -> list[Problem]:
    # BERT's last token is the mask token, and pairs of sentences have two tokens more; in bytes, 245 to 255 are free,
    # because UTF-8 never contains them.
    extra = {} if config.model.mask_token else {"bert": (1, " plus the mask token")}
    extra |= dict.fromkeys(TRANSLATION_FAMILIES, (FIRST_TOKEN, " plus padding and end"))
    count, words = extra.get(config.model.family, (0, "")) if corpus.tokenizer != BYTES else (0, "")
    vocab = corpus.vocab + count
    if vocab <= config.model.vocab:
        return []
    message = f"{config.data.path!r} has a vocabulary of {corpus.vocab}{words}, but model.vocab is {config.model.vocab}"
    return [Problem(message, f"Use --set model.vocab={vocab} or more")]


def _text_kind_problems(config: Config, corpus: Corpus) -> list[Problem]:
    """Return the problems of a data set whose kind, or whose form of segments or translations, is another one."""
    model, kind = config.model, record(config.model).kind
    if corpus.has_clicks:
        message = f"data.path={config.data.path!r} is a data set of clicks"
        return [Problem(message, "Use --set model.family=dlrm, or a data set of text")]
    if kind is Kind.TRANSLATIONS and not corpus.has_translations:
        return [_no_translations(config)]
    if corpus.has_translations:
        if kind is not Kind.TRANSLATIONS:
            message = f"data.path={config.data.path!r} has pairs of sentences, which {model.family} does not read"
            return [Problem(message, f"Use model.family={' or '.join(TRANSLATION_FAMILIES)}, or other data")]
        if not all(file.index and file.documents % 2 == 0 for file in corpus.files):
            message = f"{corpus.path!r} has a file without an index, or with an odd number of sentences"
            return [Problem(message, "Prepare it again")]
        return []
    length = model.seq_len if kind is Kind.SEGMENTS else 0
    if corpus.segments != length:
        actual, expected = (
            f"{Kind.SEGMENTS} of {tokens} tokens" if tokens else str(Kind.TEXT) for tokens in (corpus.segments, length)
        )
        message = f"{corpus.path!r} has {actual}, but the model trains on {expected}"
        return [Problem(message, "Prepare it again, or change model.next_sentence or model.seq_len")]
    if corpus.mask_token and model.mask_token != corpus.mask_token:
        message = f"{corpus.path!r} has mask token {corpus.mask_token}, but model.mask_token is {model.mask_token}"
        return [Problem(message, f"Use --set model.mask_token={corpus.mask_token}")]
    return []


def _click_problems(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    form, needed = record(config.model).clicks, _needed_tokens(config, batch)
    assert form is not None
    if corpus.tokenizer not in (form.identity, BYTES) or corpus.dtype != DTYPE or corpus.tokens % form.length:
        message = f"data.path={config.data.path!r} has no examples of the format {form.identity}"
        hint = "Use the model.dense_features, model.tables and model.hots of its preparation, or prepare it again"
        return [Problem(message, hint)]
    return [_small(config.data.path, corpus.tokens, needed)] if corpus.tokens < needed else []


def _image_problems(config: Config, corpus: Corpus) -> list[Problem]:
    """Return the problems of a data set of images of one size."""
    return [_no_images(config)] if corpus.tokens % record(config.model).stride else []


def _photograph_problems(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    if record(config.model).kind is not Kind.IMAGES:
        message = f"data.path={config.data.path!r} is a data set of images"
        return [Problem(message, "Use --set model.family=resnet, or a data set of text")]
    return _encoded_image_problems(config, corpus, batch)


def _object_problems(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    """Return the problems of a data set of images with objects, or of another one for a model that detects them."""
    path = config.data.path
    if record(config.model).kind is not Kind.OBJECTS:
        message = f"data.path={path!r} is a data set of images with objects"
        return [Problem(message, f"Use --set model.family={' or '.join(DETECTION_FAMILIES)}, or other data")]
    if not corpus.has_objects:
        message = f"data.path={path!r} has no images with objects, which {config.model.family} requires"
        return [Problem(message, f"Use a folder in COCO's format, or data.path={SYNTHETIC}")]
    categories = category_problem(f"data.path={path!r}", corpus.categories, config.model.classes)
    return categories + _encoded_image_problems(config, corpus, batch)


def _encoded_image_problems(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    if not all(file.index for file in corpus.files):
        message = f"images of any size require the ends of documents, which {corpus.path!r} does not have"
        return [Problem(message, "Prepare it again")]
    images = corpus.documents - corpus.held_out
    if images < batch:
        message = f"data.path={config.data.path!r} has {images:,} images to train on, but one batch needs {batch:,}"
        return [Problem(message, "Add images, or lower data.global_batch")]
    return []


def _no_images(config: Config) -> Problem:
    size = f"{config.model.image} x {config.model.image}"
    message = f"data.path={config.data.path!r} is not a file of images of {size} pixels"
    return Problem(message, f"Use prepared images (`xpk docs models`), another model.image, or data.path={SYNTHETIC}")


def _no_translations(config: Config) -> Problem:
    message = f"data.path={config.data.path!r} has no pairs of sentences, which {config.model.family} requires"
    hint = f"Use a .tsv file, data.target with the translations, a prepared data set of them, or data.path={SYNTHETIC}"
    return Problem(message, hint)


def _small(path: str, tokens: int, needed: int) -> Problem:
    message = f"data.path={path!r} has {tokens:,} tokens, but one batch needs {needed:,}"
    return Problem(message, "Add text, or lower data.global_batch or model.seq_len")
