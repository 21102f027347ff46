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
@click.option("--config", metavar="NAME", help="Configuration of the model that reads the data. [default: reads text]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of --config; repeatable.")
@click.option("--target", metavar="FILE", help="File with the translations of the sentences in the file SOURCE.")
@click.option("--suffixes", metavar="LIST", help="Use only files with these suffixes, such as .py,.md.")
@click.option("--tokenizer", metavar="FILE", help="SentencePiece model, or vocab.txt of BERT. [default: bytes]")
@click.option("--file-tokens", type=click.IntRange(1), metavar="N", help="Start a new file after N tokens.")
@click.pass_context
def prepare(ctx: click.Context, /, source: str, out: str, settings: tuple[str, ...], **options: object) -> None:
    """Create a data set from the files in SOURCE, a folder or gs://BUCKET/FOLDER.

    The files are text, or what the model of --config reads: images, images with objects, sentences with their
    translations, or click logs. Prints the address of the manifest, to be passed as `--set data.path=ADDRESS`.
    """
    trainer_preflight.check_trainer_installed()
    stated = {name: value for name, value in options.items() if value is not None}
    flags = [word for name, value in stated.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    flags += [word for setting in settings for word in ("--set", setting)]
    code = trainer_preflight.attach_trainer(LocalRunner(), "prepare", [source, "--out", out, *flags])
    ctx.exit(UsageError.exit_code if code in FATAL_EXIT_CODES else code)
