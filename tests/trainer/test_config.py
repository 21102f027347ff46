"""Configurations: accepted ones, and errors for users."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.small import WORKLOADS, run_alone
from trainer import config
from trainer.data import checks
from trainer.errors import FatalError
from trainer.parallel import layout

JOB = ("--num-slices", "2", "--hosts-per-slice", "2", "--chips-per-host", "4")


def messages(error: pytest.ExceptionInfo[FatalError]) -> list[str]:
    return [str(problem) for problem in error.value.problems]


def test_every_named_config_fits_its_job() -> None:
    models = ("resnet50", "ssd", "mask-rcnn", "bert-large", "transformer", "gnmt", "dlrm")
    for name in ("8b", "16b", "32b", "64b", "128b", *models):
        assert layout.check(config.load(name), layout.Chips(2, 64, 4)) == []
    for name in ("tiny", *(f"{name.removesuffix('50').removesuffix('-large')}-tiny" for name in models)):
        assert layout.check(config.load(name), layout.Chips(2, 2, 4)) == []


def test_settings_are_converted_to_the_type_of_their_field() -> None:
    made = config.load("tiny", ["optim.lr=3e-4", "run.steps=2e3", "model.remat=dots", "data.path=7"])
    assert (made.optim.lr, made.run.steps, made.model.remat, made.data.path) == (3e-4, 2000, "dots", "7")


@pytest.mark.parametrize("text", ["1e3", "0123", "yes", "x #y", "a: b", "~", "[1"])
def test_a_text_setting_is_not_parsed(text: str) -> None:
    assert config.load("tiny", [f"data.path={text}"]).data.path == text


@pytest.mark.parametrize(("name", "hint"), [("tiney", "Did you mean 'tiny'?"), ("zzz", "Use one of 128b, 16b")])
def test_an_unknown_config_is_not_read_as_a_file(name: str, hint: str) -> None:
    with pytest.raises(FatalError) as error:
        config.load(name)
    assert messages(error)[0].startswith(f"error: unknown config '{name}'. {hint}")


def test_all_problems_are_reported_together_with_hints() -> None:
    with pytest.raises(FatalError) as error:
        config.load("tiny", ["optim.lr=abc", "model.hedas=3", "steps=5", "run.steps"])
    lines = messages(error)
    assert len(lines) == 4
    assert "optim.lr='abc' is not a number" in lines[1]
    assert "Did you mean 'model.heads'?" in lines[2]
    assert "Did you mean 'run.steps'?" in lines[3]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("data.global_batch=12", "Nearest valid values: 16"),
        ("model.embed=100", "Nearest valid values: 96 or 104"),
        ("mesh.tp=3", "Values that divide 8: 1, 2, 4, 8"),
        ("mesh.dp=3", "not a multiple of the 2 slices"),
        ("mesh.microbatches=4", "mesh.stages is 1"),
        ("data.loader_hosts=3", "Valid values: 1, 2, 4"),
        ("data.shards=2", "is not divisible by the 4 hosts that load. Nearest valid values: 4"),
        (
            "data.shards=12",
            "the global batch = 32 is not divisible by data.shards = 12. Nearest valid values: 24 or 36",
        ),
        ("data.shuffle=some", "Use records or files or none"),
        ("model.head_dim=7", "odd"),
        ("checkpoint.max_to_keep=0", "Use a value above 0"),
        ("data.eval_fraction=1.5", "below 1"),
        ("model.compute_dtype=int4", "bfloat16 or float32"),
        ("run.seed=4294967296", "Use 4294967295 or less"),
        ("data.seed=18446744073709551616", "Use 4294967295 or less"),
        ("run.steps=2147483648", "Use 2147483647 or less"),
        ("optim.name=adam", "Use adamw or lamb or lars"),
        ("optim.schedule=step", "Use cosine or polynomial or constant or piecewise"),
        ("optim.schedule=piecewise", "is not a list of rising steps after optim.warmup. Use steps above 20"),
        ("optim.decay_steps=30,40", "requires optim.schedule=piecewise, not cosine"),
        ("optim.warmup_factor=1", "Use a value below 1"),
        ("optim.momentum_form=nesterov", "Use unscaled or scaled"),
        ("optim.momentum=1", "below 1"),
        ("optim.grad_accum_steps=0", "Use a value above 0"),
        (
            "optim.grad_accum_steps=3",
            "not divisible by dp x fsdp x optim.grad_accum_steps = 2 x 8 x 3. Nearest valid values: 48",
        ),
        ("optim.update_axes=dp,tp", "Use fsdp, dp or both"),
        ("optim.warmup=1" + "0" * 400, "Use 2147483647 or less"),
    ],
)
def test_problems_are_reported_before_anything_runs(setting: str, says: str) -> None:
    problems = layout.check(config.load("tiny", [setting]), layout.Chips(2, 2, 4))
    assert len(problems) == 1
    assert says in str(problems[0])


def test_all_settings_that_kernels_of_attention_do_not_support_are_reported_together() -> None:
    wrong = ["model.dropout=0.1", "model.compute_dtype=float32", "model.seq_len=100", "model.head_dim=32"]
    problems = layout.check(config.load("tiny", ["model.fused_attention=true", *wrong]), layout.Chips(2, 2, 4))
    assert list(map(str, problems)) == [
        f"error: model.fused_attention is not supported with model.{text}"
        for text in (
            "dropout = 0.1. Omit model.fused_attention, or use 0",
            "compute_dtype = 'float32'. Omit model.fused_attention, or use bfloat16",
            "seq_len = 100. Omit model.fused_attention, or use a multiple of 128",
            "head_dim = 32. Omit model.fused_attention, or use 64 or 128 or 256",
        )
    ]
    bert = layout.check(config.load("bert-tiny", ["model.fused_attention=true"]), layout.Chips(2, 2, 4))
    assert "model.family = 'bert'" in str(bert[0])


def test_all_division_problems_are_reported_together() -> None:
    wrong = ["mesh.tp=4", "mesh.stages=2", "model.heads=6", "model.mlp=6", "model.vocab=257", "model.seq_len=12"]
    made = config.load("tiny", [*wrong, "model.layers=3", "data.global_batch=12", "model.embed=99"])
    lines = [problem.message for problem in layout.check(made, layout.Chips(2, 2, 4))]
    assert lines == [
        "the global batch = 12 is not divisible by dp x fsdp x microbatches = 1 x 2 x 8",
        "model.embed = 99 is not divisible by fsdp = 2",
        "model.layers = 3 is not divisible by mesh.stages = 2",
        "model.heads = 6 is not divisible by mesh.tp = 4",
        "model.mlp = 6 is not divisible by mesh.tp = 4",
        "model.vocab = 257 is not divisible by mesh.tp = 4",
        "model.seq_len = 12 is not divisible by mesh.stages x mesh.tp = 2 x 4",
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("model.family=gpt",), "Use decoder or bert or resnet or ssd or mask_rcnn or transformer or gnmt or dlrm"),
        (("model.family=bert", "model.loss_chunk=16"), "Omit model.loss_chunk"),
        (("model.family=resnet", "quant.matmuls=forward"), "Omit quant.matmuls"),
        (("model.family=bert", "mesh.tp=8"), "model.heads = 4 is not divisible by mesh.tp = 8"),
        (("model.family=bert", "mesh.tp=4", "model.embed=66"), "model.embed = 66 is not divisible by mesh.tp = 4"),
        (("model.family=resnet", "model.blocks=3,x"), "Use a list such as 3,4,6,3"),
        (("model.family=resnet", "mesh.stages=2"), "resnet, which has no pipeline"),
        (("model.family=ssd", "model.block=basic"), "model.block = basic is not supported by ssd"),
        (("model.family=ssd", "mesh.stages=2"), "ssd, which has no pipeline"),
        (("model.family=ssd", "model.blocks=3"), "has 1 stage, but ssd requires at least 2"),
        (("model.family=ssd", "model.image=30"), "fixed sizes in pixels. Use 31 or more"),
        (("model.family=resnet", "data.color_jitter=true"), "data.color_jitter is not supported by resnet"),
        (("model.family=ssd", "data.expansion=0.5"), "data.expansion = 0.5 is below 1"),
        (("model.family=ssd", "model.detections=0", "run.target_accuracy=0.2"), "model.detections is 0"),
        (("model.family=resnet", "model.norm_examples=5"), "Nearest valid values: 30 or 35"),
        (("model.family=mask_rcnn", "model.image=100", "model.mask=28"), "Nearest valid values: 96 or 128"),
        (
            ("model.family=mask_rcnn", "model.mask=28", "model.image_width=300"),
            "model.image_width = 300 is not divisible by 32",
        ),
        (
            ("model.family=mask_rcnn", "model.mask=28", "model.short_side=256", "model.image_width=320"),
            "model.short_side = 256 and model.long_side = 0 do not fit images of 224 x 320 pixels",
        ),
        (("model.family=ssd", "model.image_width=320"), "are not supported by ssd, whose images are squares"),
        (("model.family=mask_rcnn",), "model.mask = 0 is too small: mask_rcnn learns masks from bitmaps of objects"),
        (("model.family=mask_rcnn", "model.mask=28", "model.pooling=roi"), "Use gather or one_hot"),
        (("model.family=mask_rcnn", "model.mask=28", "model.anchor_samples=1"), "leaves no positive anchor"),
        (("model.family=mask_rcnn", "model.mask=28", "mesh.stages=2"), "mask_rcnn, which has no pipeline"),
        (
            ("model.family=resnet", "data.global_batch=96", "optim.grad_accum_steps=2", "model.norm_examples=32"),
            "the global batch = 96 is not divisible by optim.grad_accum_steps x model.norm_examples = 2 x 32",
        ),
        (
            ("model.family=resnet", "mesh.grad_reduction=explicit", "model.norm_examples=32"),
            "the global batch = 32 is not divisible by dp x model.norm_examples = 2 x 32",
        ),
        (
            ("model.family=resnet", "data.global_batch=0", "data.batch_per_chip=11", "model.norm_examples=32"),
            "the global batch = 176 is not divisible by model.norm_examples = 32",
        ),
    ],
)
def test_settings_that_a_family_does_not_support_are_rejected(settings: tuple[str, ...], says: str) -> None:
    problems = layout.check(config.load("tiny", settings), layout.Chips(2, 2, 4))
    assert says in str(problems[0])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.tables=", "model.tables = '' is not a list of positive integers"),
        ("model.top_mlp=64,x", "model.top_mlp = '64,x' is not a list of positive integers"),
        ("model.tables=1,20,30,4,5,6", "model.tables has a table of 1 rows"),
        ("model.hots=1,2", "model.hots = '1,2' is not a positive integer, or one for each of 6 tables"),
        ("model.placements=rows,columns", "is not one placement, or one for each table"),
        ("model.placements=column", "Use replicated or columns or rows, or omit it"),
        (
            "model.placements=rows",
            "table 3 of model.tables cannot be sharded by rows: it has fewer than 1,024 rows (200)",
        ),
        ("mesh.tp=2", "mesh.stages = 1 and mesh.tp = 2 are not supported by dlrm"),
        ("model.packed=true", "model.packed and quant.matmuls are not supported by dlrm"),
        ("data.click_ids=hashed", "Use numbered or exact"),
        ("data.global_batch=100", "the global batch = 100 is not divisible by dp x fsdp = 2 x 8"),
    ],
)
def test_settings_that_a_model_of_clicks_does_not_support_are_rejected(setting: str, says: str) -> None:
    problems = layout.check(config.load("dlrm-tiny", [setting]), layout.Chips(2, 2, 4))
    assert says in str(problems[0])


def test_columns_must_be_divisible_by_the_chips() -> None:
    configuration = config.load("dlrm-tiny", ["model.placements=columns", "model.embed=12"])
    assert "cannot be sharded by columns: model.embed = 12 is not divisible by fsdp = 8" in str(
        layout.check(configuration, layout.Chips(2, 2, 4))[0]
    )


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("resnet-tiny", ["data.path=stdlib"], "is not a file of images of 32 x 32 pixels"),
        ("resnet-tiny", ["model.classes=9"], "Use --set model.classes=10 or more"),
        ("tiny", ["data.path=synthetic"], "model.family=resnet, or a folder of text"),
    ],
)
def test_data_of_another_kind_is_rejected(name: str, settings: list[str], says: str) -> None:
    assert says in str(checks.check_source(config.load(name, settings), 8)[0])


def test_check_prints_nothing_or_one_json_object(tmp_path: Path) -> None:
    good = run_alone("check", *JOB)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    wrong = [f"data.path={tmp_path / 'none'}", "model.heads=3", "mesh.tp=2"]
    bad = run_alone("check", *JOB, *(word for setting in wrong for word in ("--set", setting)))
    assert bad.returncode == 42
    problems = json.loads(bad.stdout)["problems"]
    assert [sorted(problem) for problem in problems] == [["hint", "message"]] * 2


@pytest.mark.parametrize("elastic", [[], ["--min-slices", "1"]], ids=["joined", "elastic"])
@pytest.mark.parametrize("setting", ["mesh.tp=0", "data.global_batch=-1", "model.seq_len=0", "mesh.dp=3"])
def test_check_reports_numbers_out_of_range(setting: str, elastic: list[str]) -> None:
    sizes = ("--num-slices", "2", "--hosts-per-slice", "1", "--chips-per-host", "4", *elastic)
    result = run_alone("check", *sizes, "--set", "data.path=stdlib", "--set", setting)
    (problem,) = json.loads(result.stdout)["problems"]
    assert result.returncode == 42 and problem["message"].startswith(setting.replace("=", " = "))


CHECK = """
import sys
from trainer import main
try:
    main.main(sys.argv[1:])
except SystemExit as end:
    print(end.code, "jax" in sys.modules, "numpy" in sys.modules)
"""


def test_check_does_not_import_jax() -> None:
    command = [sys.executable, "-c", CHECK, "check", *JOB]
    ran = subprocess.run(command, env={"PYTHONPATH": str(WORKLOADS)}, capture_output=True, text=True)
    assert ran.stdout == "0 False False\n", ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "tinny"),
        ("--set", "run.stepps=3"),
        ("--nonsense",),
        ("--set", "data.path=/nowhere/at/all", "--set", "run.output_dir=OUT"),
        ("--set", "run.output_dir=/proc/none"),
        ("prepare", "/nowhere/at/all", "--out", "OUT"),
    ],
)
def test_bad_input_ends_with_42_and_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = run_alone(*(word.replace("OUT", str(tmp_path)) for word in words))
    assert ran.returncode == 42
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith("error: ")


def test_missing_environment_variables_are_named() -> None:
    ran = run_alone("--set", "run.steps=1", MEGASCALE_NUM_SLICES="2")
    assert ran.returncode == 42
    assert "MEGASCALE_SLICE_ID is not set" in ran.stderr
    assert "XPK_COORDINATOR_ADDRESS" in ran.stderr
