"""`xpk config`: default options."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from xpk.capacity import user_config
from xpk.cli.google_xpk import Group
from xpk.cli.options import output_option
from xpk.cli.terminal.output import Console, echo, list_options
from xpk.cli.terminal.tables import Column
from xpk.cost import LIST
from xpk.model.errors import NotFoundError, UsageError

_COLUMNS = (
    Column("NAME", lambda s: s.name),
    Column("VALUE", lambda s: s.value or s.default, wrap=True),
    Column("SOURCE", lambda s: s.source),
)


@dataclass(frozen=True, slots=True)
class SavedSetting:
    """A setting and its saved value."""

    name: str  # name of the setting
    value: str | None  # saved value; null if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A setting with its value in effect."""

    name: str  # name of the setting
    value: str | None  # value in effect without flags; null for the default
    source: str  # source of the value
    set: str | None  # value of `xpk config set`; null if there is none
    default: str  # the default, in words
    flag: str  # flag that takes precedence over everything else
    variables: tuple[str, ...]  # environment variables, which take precedence over the saved value
    choices: tuple[str, ...]  # possible values; empty if any is allowed
    meaning: str  # meaning of the setting


def _keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of settings."""
    return [
        CompletionItem(name, help=setting.meaning)
        for name, setting in user_config.SETTINGS.items()
        if name.startswith(incomplete)
    ]


def _pairs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names, and values of settings that have choices."""
    words: tuple[str, ...] = ctx.params.get("words") or ()
    if len(words) % 2 == 0:
        return _keys(ctx, parameter, incomplete)
    choices = _choices(words[-1]) if user_config.is_known(words[-1]) else ()
    return [CompletionItem(value) for value in choices if value.startswith(incomplete)]


def _choices(key: str) -> tuple[str, ...]:
    from xpk.capacity.provider import cluster_names, maker_names

    setting = user_config.setting(key)
    if setting.name == "provider":
        return tuple(maker_names())
    return tuple(cluster_names()) if setting.name == "cluster" else setting.choices


@click.group(cls=Group)
def config() -> None:
    """Get and set default options, such as the cluster, project and namespace.

    Precedence: flag, environment variable, value set here, built-in default.

    \b
      xpk config set cluster dev
      xpk config explain cluster
    """


@config.command()
@click.argument("key", shell_complete=_keys)
@output_option
@click.pass_obj
def get(console: Console, key: str, output: str | None) -> None:
    """Print the saved value of KEY; exit with code 3 if there is none.

    Environment variables are ignored; `xpk config explain KEY` shows the value in effect.
    """
    console, name = console.choosing(output), user_config.setting(key).name
    saved = user_config.load()
    if name not in saved:
        raise NotFoundError(
            f"'{name}' is not set",
            hint=f"`xpk config set {name} VALUE`; `xpk config explain {name}` shows the value in effect",
        )
    if console.is_data:
        console.data(asdict(SavedSetting(name, saved[name])))
    else:
        echo(name if console.output == "name" else saved[name])


@config.command("set")
@click.argument("words", nargs=-1, metavar="KEY VALUE...", shell_complete=_pairs)
@output_option
@click.pass_obj
def set_(console: Console, words: tuple[str, ...], output: str | None) -> None:
    """Set KEY to VALUE. Several pairs are set together or not at all."""
    if not words or len(words) % 2:
        what = f"'{words[-1]}' has no value" if words else "no setting given"
        raise UsageError(what, hint="`xpk config set KEY VALUE`; `xpk config list` shows all settings")
    setting_names = [user_config.own_name(key) for key in words[::2]]
    if twice := sorted({key for key in setting_names if setting_names.count(key) > 1}):
        raise UsageError(f"two values for {', '.join(twice)}", hint="pass one of them")
    changes = dict(zip(words[::2], words[1::2], strict=True))
    for key in [key for key in changes if user_config.foreign_reason(key)]:
        console.warn(f"{key} has no effect: {user_config.foreign_reason(key)}")
        del changes[key]
    user_config.change(changes, known=_price_problems(changes.get("prices", LIST)))
    _tell(console.choosing(output), changes)


def _price_problems(value: str) -> list[str]:
    """Return why the file of a price table cannot be read. Only `set` checks it: the file may change afterwards."""
    if not value.startswith("/"):
        return []
    from xpk.capacity.gke.planning.cost import chip_hour_prices

    if not os.path.isfile(value):  # Path.is_file raises in a folder that this user may not search
        return [f"prices: file {value} not found"]
    try:
        chip_hour_prices((), None, Path(value))
    except UsageError as error:
        return [f"prices: {error.message}"]
    return []


@config.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...", shell_complete=_keys)
@output_option
@click.pass_obj
def unset(console: Console, keys: tuple[str, ...], output: str | None) -> None:
    """Remove the value of KEY."""
    user_config.change(dict.fromkeys(keys))
    _tell(console.choosing(output), dict.fromkeys(keys))


@config.command("list")
@list_options(_COLUMNS)
@output_option
@click.pass_obj
def list_(console: Console, output: str | None, no_headers: bool, sort_by: Column | None) -> None:
    """List all settings, their values in effect without flags, and the source of each value."""
    saved = user_config.load()
    settings = [_described(name, saved) for name in user_config.SETTINGS]
    console.choosing(output, headers=not no_headers, sort_by=sort_by).items(settings, columns=_COLUMNS, data=asdict)


@config.command()
@click.argument("key", shell_complete=_keys)
@output_option
@click.pass_obj
def explain(console: Console, key: str, output: str | None) -> None:
    """Show the meaning, default and precedence of KEY, and its value in effect."""
    console, name = console.choosing(output), user_config.setting(key).name
    setting = _described(name, user_config.load())
    if console.is_data:
        console.data(asdict(setting))
        return
    if console.output == "name":
        echo(name)
        return
    echo(f"{name}: {setting.meaning}")
    for title, value in (
        ("in effect", f"{setting.value or setting.default} (from: {setting.source})"),
        ("set", setting.set or "-"),
        ("default", setting.default),
        ("flag", f"{setting.flag} (takes precedence over all others)"),
        ("variables", f"{', '.join(setting.variables)} (take precedence over the value set)"),
        *((("choices", ", ".join(setting.choices)),) if setting.choices else ()),
    ):
        echo(f"  {title:<10} {value}")


def _described(name: str, saved: dict[str, str]) -> EffectiveSetting:
    setting, now = user_config.SETTINGS[name], user_config.effective_setting(name, saved)
    return EffectiveSetting(
        name=name,
        value=now.value,
        source=now.source,
        set=saved.get(name),
        default=setting.default,
        flag=setting.flag,
        variables=setting.variables,
        choices=setting.choices,
        meaning=setting.meaning,
    )


def _tell(console: Console, changes: dict[str, Any]) -> None:
    """Report the new values, and what overrides them."""
    saved = {user_config.own_name(key): value for key, value in changes.items()}
    if console.is_data:
        console.data([asdict(SavedSetting(name, value)) for name, value in saved.items()])
    for name, value in saved.items():
        console.done(f"{name} set to {value}" if value is not None else f"{name} unset")
        if value is not None and (now := user_config.effective_setting(name, {})).value is not None:
            console.tell(f"warning: {now.source} takes precedence: {name} is {now.value}")
