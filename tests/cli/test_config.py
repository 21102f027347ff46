"""`xpk config`, and the use of settings by commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tests.cli.conftest import Xpk
from xpk.cli.main import xpk as program


def completed(args: list[str], incomplete: str) -> list[str]:
    result = ShellComplete(program, {}, "xpk", "_XPK_COMPLETE").get_completions(args, incomplete)
    return [item.value for item in result]


def test_get_prints_what_set_wrote(xpk: Xpk) -> None:
    missing = xpk("config", "get", "zone")
    assert missing.code == 3 and "xpk config set zone" in missing.err
    assert xpk("config", "set", "zone", "us-central1-a").code == 0
    assert xpk("config", "get", "zone").out == "us-central1-a\n"
    assert xpk("config", "get", "zone", "-o", "json").data == {"name": "zone", "value": "us-central1-a"}
    assert xpk("config", "unset", "zone").code == xpk("config", "unset", "zone").code == 0
    assert xpk("config", "get", "zone").code == 3


def test_all_bad_input_is_reported_together(xpk: Xpk, tmp_path: Path) -> None:
    done = xpk("config", "set", "namespce", "a", "priority", "urgent", "provider", "loca")
    assert done.code == 2 and done.err.count("error: ") == 3
    assert "did you mean 'namespace'?" in done.err and "very-high" in done.err and "kind" in done.err
    assert xpk("config", "set", "cluster").code == xpk("config", "set").code == 2
    assert xpk("config", "set", "project", "aa", "project-id", "bb").code == 2
    for verb in ("get", "explain", "unset"):
        (line, _) = xpk("config", verb, "clustr").err.splitlines()
        assert line == "error: unknown setting 'clustr': did you mean 'cluster'?"
    assert not (tmp_path / "config" / "preferences.toml").exists()


def test_a_price_table_is_checked_when_it_is_set(xpk: Xpk, tmp_path: Path) -> None:
    table = tmp_path / "prices.yaml"
    missing = xpk("config", "set", "prices", str(table))
    assert missing.code == 2 and missing.err.startswith(f"error: prices: file {table} not found\n")
    table.write_text("chip_hour: [1, 2]\n")
    wrong = xpk("config", "set", "prices", str(table), "priority", "urgent")
    assert wrong.code == 2 and f"prices: {table} is not a price table" in wrong.err and "unknown priority" in wrong.err
    table.write_text("chip_hour: {v5e: {us-central1: 1.2}}\n")
    assert xpk("config", "set", "prices", str(table)).code == 0
    table.unlink()
    assert xpk("config", "get", "prices").out == f"{table}\n", "other commands do not need the file"


def test_explain_shows_the_source_of_the_value(xpk: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    def source() -> tuple[str | None, str]:
        result = xpk("config", "explain", "priority", "-o", "json").data
        return result["value"], result["source"]

    assert source() == (None, "default")
    xpk("config", "set", "priority", "low")
    value, file = source()
    assert value == "low" and file.endswith("preferences.toml")
    monkeypatch.setenv("XPK_WORKLOAD_CREATE_PRIORITY", "high")
    assert source() == ("high", "variable XPK_WORKLOAD_CREATE_PRIORITY")
    assert "takes precedence" in xpk("config", "set", "priority", "low").err
    text = xpk("config", "explain", "priority").out
    assert all(word in text for word in ("--priority", "medium", "very-low", "high (from: variable"))
    listed = {entry["name"]: entry["value"] for entry in xpk("config", "list", "-o", "json").data}
    assert listed["priority"] == "high" and listed["zone"] is None


def test_settings_are_used_unless_a_flag_or_variable_overrides_them(dev: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dev("cluster", "create", "other", "--tpu-type", "v5litepod-4").code == 0
    assert dev("workload", "list").code == 2  # no cluster option
    words = ("cluster", "dev", "priority", "low", "max-restarts", "3", "image", "mine", "output-root", "/tmp/x")
    assert dev("config", "set", *words).code == 0

    def made(*flags: str) -> tuple[object, ...]:
        text = dev("workload", "create", "w", "--command", "true", "--dry-run", *flags).out
        return tuple(
            word in text for word in ("priority-class: low", "maxRestarts: 3", "image: mine", "/tmp/x/w", "v5litepod-8")
        )

    assert made() == (True, True, True, True, True)
    assert made("--priority", "high", "--max-restarts", "0") == (False, False, True, True, True)
    assert made("--cluster", "other") == (True, True, True, True, False)
    monkeypatch.setenv("XPK_CLUSTER", "other")
    monkeypatch.setenv("XPK_OUTPUT_ROOT", "/tmp/y")
    assert made() == (True, True, True, False, False)


def test_namespace_and_queue_are_used(dev: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    dev("config", "set", "namespace", "team", "queue", "red")
    assert "queue 'red' not found in namespace 'team'" in dev("workload", "create", "w", "--command", "true").err
    monkeypatch.setenv("XPK_NAMESPACE", "blue")
    assert "queue 'red' not found in namespace 'blue'" in dev("workload", "create", "w", "--command", "true").err
    assert "in namespace" not in dev("workload", "status", "w", "-n", "default").err


def test_the_provider_setting_is_used_by_create(xpk: Xpk) -> None:
    make = ("cluster", "create", "dev", "--tpu-type", "v5litepod-8", "--dry-run", "-o", "json")
    assert xpk(*make).code == 0
    xpk("config", "set", "provider", "gke")
    done = xpk(*make)
    assert done.code == 2 and "no project given" in done.err
    assert xpk(*make, "--provider", "local").code == 0
    xpk("config", "set", "provider", "local", "project", "my-project")
    assert xpk(*make).code == 0  # a preferred location needs no request
    assert "no zone given" in xpk(*make, "--spot").err and "no project given" not in xpk(*make, "--spot").err


def test_a_preferred_project_does_not_hide_local_clusters(dev: Xpk) -> None:
    dev("config", "set", "project", "my-project", "zone", "us-central1-a")
    assert dev("workload", "list", "--cluster", "dev").code == 0
    assert [entry["name"] for entry in dev("cluster", "list", "-o", "json").data] == ["dev"]


def test_a_damaged_file_is_reported_in_one_line_and_can_be_repaired(dev: Xpk, tmp_path: Path) -> None:
    file = tmp_path / "config" / "preferences.toml"
    file.parent.mkdir()
    file.write_text('zone = "moon"\n')
    done = dev("workload", "list")
    assert done.code == 2 and str(file) in done.err and "Traceback" not in done.err
    assert dev("config", "unset", "zone").code == dev("workload", "list").code == 0


def test_names_and_choices_are_completed(dev: Xpk) -> None:
    assert completed(["config", "get"], "p") == ["provider", "project", "priority", "prices"]
    assert completed(["config", "set"], "que") == ["queue"]
    assert completed(["config", "set", "priority"], "very") == ["very-low", "very-high"]
    assert completed(["config", "set", "cluster"], "") == ["dev"]
    assert completed(["config", "set", "cluster", "dev"], "z") == ["zone"]
    assert completed(["config", "set", "nonsense"], "") == []
    assert completed([], "conf") == ["config"]


def test_completion_uses_the_preferred_cluster(dev: Xpk) -> None:
    assert dev("workload", "create", "w", "--command", "true").code == 0
    assert dev("cluster", "create", "other", "--tpu-type", "v5litepod-4").code == 0
    assert completed(["workload", "status"], "") == []
    assert dev("config", "set", "cluster", "dev").code == 0
    assert completed(["workload", "status"], "") == ["w"]
    assert dev("config", "set", "namespace", "red").code == 0
    assert completed(["workload", "status"], "") == []
    assert completed(["workload", "status", "-n", "default"], "") == ["w"]
