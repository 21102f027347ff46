"""Complete runs of DLRM: it learns its synthetic clicks, and a killed host loses nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.clicks import SETTINGS
from tests.trainer.small import Cluster, killed_and_resumed, run_alone
from trainer import config
from trainer.data import synthetic_clicks
from trainer.data.clicks import click_format

TARGET = 0.79  # of dlrm-tiny; the best possible AUC is 0.8206
pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_the_small_configuration_learns_its_clicks_to_the_target(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    configuration = config.load("dlrm-tiny")
    ran = run_alone("--config", "dlrm-tiny", "--set", f"run.output_dir={tmp_path}", JAX_NUM_CPU_DEVICES="1")
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "eval_auc" in line][-1]
    form, examples = click_format(configuration.model), int(2**18 * configuration.data.eval_fraction)
    chunks = [synthetic_clicks.draw(form, chunk) for chunk in range((2**18 - examples) // 4096, 2**18 // 4096)]
    labels, odds = (np.concatenate(part) for part in zip(*((r[:, 0], o) for r, o in chunks), strict=True))
    assert (held_out["eval_examples"], held_out["step"]) == (examples, configuration.run.steps)
    assert TARGET < held_out["eval_auc"] < roc_auc_score(labels, odds) == pytest.approx(0.8206, abs=1e-4)


@pytest.mark.slow
def test_a_run_of_clicks_continues_bit_for_bit_after_a_killed_host(tmp_path: Path) -> None:
    settings = [
        *SETTINGS,
        *("model.placements=", "data.path=synthetic", "data.max_bytes=100000", "data.eval_fraction=0.1"),
        *("run.steps=12", "checkpoint.every=4", "run.eval_every=6", "run.log_every=1"),
    ]
    whole, resumed = killed_and_resumed(tmp_path, settings, 5)
    assert min(resumed.losses()) > 1
    assert areas(resumed)[-1] == areas(whole)[-1] and len(areas(whole)) == 2


def areas(run: Cluster) -> list[float]:
    return [line["eval_auc"] for line in run.metrics() if "eval_auc" in line]
