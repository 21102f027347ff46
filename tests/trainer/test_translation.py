"""Runs that translate: BLEU as of sacrebleu, what they learn, and recovery."""

# mypy: disallow-untyped-calls=False

import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

from tests.trainer.small import killed_and_resumed, run_alone
from trainer import config, translation
from trainer.data.dataset import Corpus
from trainer.data.records import END, FIRST_TOKEN, PADDING
from trainer.errors import FatalError
from trainer.evaluation import EvalSums
from trainer.step.programs import Translations

TINY = config.load("transformer-tiny")
SENTENCES = ("the cat sat on the mat", "a dog", "it is a small house, I think", "ü and ß are letters")
REFERENCES = ("the cat sat on a mat", "the dog", "it is a little house, I think", "ü and ß are two letters")


def numbers(texts: tuple[str, ...], length: int = 40) -> Any:
    rows = [[FIRST_TOKEN + byte for byte in text.encode()] + [END] for text in texts]
    return np.array([row + [PADDING] * (length - len(row)) for row in rows], np.int32)


def test_bleu_of_batches_is_that_of_sacrebleu_over_all_sentences() -> None:
    expected = sacrebleu.corpus_bleu(list(SENTENCES), [list(REFERENCES)]).score
    total: translation.BleuSums | None = None
    for first in (0, 2):
        own = slice(first, first + 2)
        # The third example of each batch is padding.
        texts, references = (numbers((*of[own], "padding")) for of in (SENTENCES, REFERENCES))
        sums = translation.bleu_sums(TINY, Translations(*map(jnp.asarray, (texts, references, [1.0, 1.0, 0.0]))))
        total = total + sums if total else sums
    assert total is not None and 20 < expected < 90
    assert total.bleu() == pytest.approx(expected, abs=1e-9)
    scalars = EvalSums(1.0, 2.0, 3.0, total).scalars
    assert EvalSums.of(scalars) == EvalSums(1.0, 2.0, 3.0, total), "as elastic slices add them"
    assert EvalSums.of([1.0, 2.0, 3.0]).bleu is None


def corpus(tokenizer: str) -> Corpus:
    return Corpus("tokens.json", 10, "uint8", 256, "", 2, 0, tokenizer, ())


def test_a_missing_package_or_tokenizer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    translation.check(TINY, corpus("bytes"))
    with pytest.raises(FatalError, match=r"BLEU requires the text of translations, but 'tokens.json' has only tokens"):
        translation.check(TINY, corpus("sentencepiece:123"))
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(FatalError) as error:
        translation.check(TINY, corpus("bytes"))
    assert [str(problem) for problem in error.value.problems] == [
        "error: the evaluation of translations requires sacrebleu, which is not installed. pip install"
        " 'xpk-multislice[translation]', or use --set model.beam=0 to evaluate only the loss"
    ]
    translation.check(config.load("transformer-tiny", ["model.beam=0"]), corpus("bytes"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "steps", "bleu"), [("transformer-tiny", 300, 95), ("gnmt-tiny", 400, 95)])
def test_a_model_learns_to_translate_the_synthetic_set(name: str, steps: int, bleu: float, tmp_path: Path) -> None:
    settings = ("run.eval_every=0", f"run.steps={steps}", f"run.output_dir={tmp_path}")
    ran = run_alone("--config", name, *(word for setting in settings for word in ("--set", setting)))
    assert ran.returncode == 0, ran.stderr
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval_bleu"] >= bleu, ran.stdout


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(240)
@pytest.mark.parametrize("family", ["transformer", "gnmt"])
def test_a_killed_host_resumes_to_the_bit(family: str, tmp_path: Path) -> None:
    settings = [
        *(f"model.family={family}", "model.batch_lengths=8", "model.beam=2", "data.path=synthetic"),
        *("data.max_bytes=8000", "run.steps=12", "checkpoint.every=4", "run.eval_every=6", "run.log_every=1"),
    ]
    whole, resumed = killed_and_resumed(tmp_path, settings, 6)
    assert min(resumed.losses()) > 4, "from a checkpoint"
    keys = ("step", "eval_loss", "eval_bleu")
    ends = [[[line[key] for key in keys] for line in job.metrics() if "eval_bleu" in line] for job in (whole, resumed)]
    assert ends[0][-1] == ends[1][-1]
