"""`xpk data`: data sets of the bundled trainer."""

from __future__ import annotations

import click

from xpk.cli.terminal.help import Command, CommandGroup
from xpk.jobs.create import trainer_preflight
from xpk.model.errors import UsageError
from xpk.model.workload_options import FATAL_EXIT_CODES
from xpk.proc import LocalRunner


@click.group(cls=CommandGroup)
def data() -> None:
    """Prepare data sets for the bundled trainer."""


@data.command(cls=Command)
@click.argument("source")
@click.option("--out", required=True, metavar="PLACE", help="Folder, or gs://BUCKET/FOLDER, to write the data set to.")
@click.option("--images", is_flag=True, help="SOURCE has class folders of JPEG files, or WebDataset archives.")
@click.option("--target", metavar="FILE", help="File with the translations of the sentences in the file SOURCE.")
@click.option("--suffixes", metavar="LIST", help="Use only files with these suffixes, such as .py,.md.")
@click.option("--tokenizer", metavar="FILE", help="SentencePiece model, or vocab.txt of BERT. [default: bytes]")
@click.option("--pairs", type=click.IntRange(8), metavar="N", help="Make pairs of segments of N tokens, for BERT.")
@click.option("--file-tokens", type=click.IntRange(1), metavar="N", help="Start a new file after N tokens.")
@click.option("--config", metavar="NAME", help="Configuration of a model that reads click logs, such as dlrm.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of --config; repeatable.")
@click.pass_context
def prepare(ctx: click.Context, /, source: str, out: str, images: bool, **options: object) -> None:
    """Create a data set from the text files or images in SOURCE, a folder or gs://BUCKET/FOLDER.

    Translations are two files with a sentence a line, SOURCE and --target, or one file SOURCE of two columns that ends
    with .tsv. Prints the address of the manifest, to be passed as `--set data.path=ADDRESS`.
    """
    trainer_preflight.check_trainer_installed()
    stated = {name: value for name, value in options.items() if value is not None}
    flags = ["--images"] if images else []
    flags += [word for name, value in stated.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    code = trainer_preflight.attach_trainer(LocalRunner(), "prepare", [source, "--out", out, *flags])
    ctx.exit(UsageError.exit_code if code in FATAL_EXIT_CODES else code)
