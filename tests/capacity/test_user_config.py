"""The file of preferences: settings are read as written, even with concurrent writers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.capacity import user_config
from xpk.model.errors import UsageError, XpkError

_LABELS = st.from_regex(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)
_TEXTS = st.text(min_size=1).filter(lambda text: text.isprintable() and " " not in text and text.strip() == text)
_VALUES = {
    "provider": st.sampled_from(["local", "kind", "gke"]),
    "cluster": _LABELS,
    "project": st.sampled_from(["my-project-1", "example.com:old"]),
    "zone": st.sampled_from(["us-central1-a", "europe-west4-b"]),
    "namespace": _LABELS,
    "queue": _LABELS.filter(lambda name: name != "cluster-queue"),
    "image": _TEXTS,
    "output-root": _TEXTS.map(lambda text: f"/{text}"),
    "priority": st.sampled_from(["very-low", "high"]),
    "max-restarts": st.integers(0, 10**6).map(str),
    "script-dir": _TEXTS,
    "prices": _TEXTS.map(lambda text: f"/{text}"),
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XPK_CONFIG_DIR": str(tmp_path / "config")}


def test_every_setting_is_in_the_property() -> None:
    assert set(_VALUES) == set(user_config.SETTINGS)


@given(wanted=st.fixed_dictionaries({}, optional=_VALUES), gone=st.sets(st.sampled_from(sorted(_VALUES))))
def test_a_setting_is_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, str], gone: set[str]
) -> None:
    environ = {"XPK_CONFIG_DIR": str(tmp_path_factory.mktemp("config"))}
    user_config.change(wanted, environ)
    assert user_config.load(environ) == wanted
    user_config.change(dict.fromkeys(gone), environ)
    assert user_config.load(environ) == {key: value for key, value in wanted.items() if key not in gone}


@given(text=st.text())
def test_an_invalid_setting_changes_nothing(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    environ = {"XPK_CONFIG_DIR": str(tmp_path_factory.mktemp("config"))}
    user_config.change({"cluster": "dev"}, environ)
    try:
        user_config.change({"cluster": "other", "image": text}, environ)
    except UsageError:
        assert user_config.load(environ) == {"cluster": "dev"}
    else:
        assert user_config.load(environ) == {"cluster": "other", "image": text}


def test_all_problems_are_reported_together(environ: dict[str, str]) -> None:
    wrong = {"clutser": "dev", "zone": "moon", "priority": "urgent", "max-restarts": "-1", "image": "", "project": "P"}
    with pytest.raises(UsageError) as caught:
        user_config.change(wrong, environ)
    assert len(caught.value.problems) == len(wrong)
    assert caught.value.problems[0] == "unknown setting 'clutser': did you mean 'cluster'?"
    assert not user_config.path(environ).exists()


def test_the_file_is_private_and_no_temporary_file_remains(environ: dict[str, str]) -> None:
    user_config.change({"cluster": "dev"}, environ)
    user_config.change({"cluster": "other"}, environ)
    file = user_config.path(environ)
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_symbolic_link_to_the_file_is_kept(environ: dict[str, str], tmp_path: Path) -> None:
    file, kept = user_config.path(environ), tmp_path / "dotfiles.toml"
    file.parent.mkdir()
    file.symlink_to(kept)
    user_config.change({"cluster": "dev"}, environ)
    assert file.is_symlink() and "dev" in kept.read_text()


def test_no_change_is_lost_when_two_processes_write(environ: dict[str, str]) -> None:
    code = (
        "import sys\nfrom xpk.capacity import user_config\n"
        "for n in range(40):\n    user_config.change({sys.argv[1]: f'{sys.argv[1]}-{n}'})\n    user_config.load()\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, key], env=os.environ | environ) for key in ("cluster", "queue")
    ]
    assert [process.wait(60) for process in both] == [0, 0]
    assert user_config.load(environ) == {"cluster": "cluster-39", "queue": "queue-39"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cluster = ", "is not TOML"),
        ("cluster = ['a']\nzone = 'moon'\nx = 1", "cluster: ['a'] is not a string"),
        ("max-restarts = true", "max-restarts: True is not a string"),
    ],
)
def test_a_damaged_file_is_reported(environ: dict[str, str], text: str, told: str) -> None:
    file = user_config.path(environ)
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        user_config.load(environ)
    assert told in caught.value.problems[0] and str(file) in caught.value.problems[0]
    assert len(caught.value.problems) == (3 if "moon" in text else 1)


def test_unknown_settings_in_the_file_can_be_unset(environ: dict[str, str]) -> None:
    file = user_config.path(environ)
    file.parent.mkdir()
    file.write_text('cluster = "dev"\nmax-restarts = 3\n"what is this" = "x"\nzone = "moon"\n')
    user_config.change({"what is this": None, "zone": None}, environ)
    assert user_config.load(environ) == {"cluster": "dev", "max-restarts": "3"}
    with pytest.raises(UsageError, match="unknown setting 'what is this'"):
        user_config.change({"what is this": None}, environ)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(XpkError) as caught:
        user_config.change({"cluster": "dev"}, {"XPK_CONFIG_DIR": str(tmp_path / "file")})
    assert "XPK_CONFIG_DIR" in caught.value.hint


def test_the_location_of_the_file(tmp_path: Path) -> None:
    assert user_config.path({}, tmp_path) == tmp_path / ".config" / "xpk" / "preferences.toml"
    assert user_config.path({"XDG_CONFIG_HOME": "/x"}, tmp_path) == Path("/x/xpk/preferences.toml")


def test_googles_name_of_a_setting_in_the_file_is_accepted(environ: dict[str, str]) -> None:
    file = user_config.path(environ)
    file.parent.mkdir()
    file.write_text('project-id = "old-one-1"\ncluster-name = "dev"\nzone = "us-central1-a"\n')
    user_config.change({"project": "new-one-1", "cluster": None}, environ)
    assert user_config.load(environ) == {"project": "new-one-1", "zone": "us-central1-a"}
