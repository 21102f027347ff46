"""`xpk workload delete`: hung hosts, several workloads, and the removal of output."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Xpk
from tests.waiting import until


def test_hung_hosts_are_ended_by_the_hinted_command(dev: Xpk, state: Path) -> None:
    stubborn = "trap '' TERM; echo up > $XPK_OUTPUT_DIR/up-$$; while true; do sleep 0.1; done"
    dev("workload", "create", "run", "-tgps", "300", "--command", stubborn)
    output = Path(dev("workload", "status", "run", "-o", "json").data["output_dir"])
    until(lambda: len(list(output.glob("up-*"))) == 2)
    stuck = dev("workload", "delete", "run", "--with-output", "--timeout", "1")
    assert (
        stuck.code == 124
        and "2 hosts of 'run' still running after 1 s" in stuck.err
        and "--grace-period 0" in stuck.err
    )
    assert output.exists()
    ended = dev("workload", "delete", "run", "--with-output", "--grace-period", "0")
    assert ended.code == 0 and not output.exists(), ended.err
    assert dev("workload", "delete", "run").code == 3


def test_deleting_many_admits_none_of_them(dev: Xpk, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        dev("workload", "create", name, "--num-slices", "2", "--command", f"touch {tmp_path}/$XPK_WORKLOAD; sleep 60")
    until((tmp_path / "a").exists)
    assert dev("workload", "delete", "--all", "--yes").code == 0
    assert dev("workload", "list", "-o", "json").data == []
    assert not (tmp_path / "b").exists() and not (tmp_path / "c").exists()


def test_output_is_not_removed_while_hosts_write_to_it(dev: Xpk) -> None:
    dev("workload", "create", "run", "--command", "sleep 60")
    refused = dev("workload", "delete", "run", "--with-output", "--no-wait")
    assert refused.code == 2 and "omit --no-wait" in refused.err
    assert dev("workload", "status", "run").code == 0


def test_a_dry_run_of_delete_predicts_the_run(dev: Xpk, state: Path) -> None:
    gone = dev("workload", "delete", "x", "--ignore-not-found", "--dry-run")
    assert gone.code == 0 and "refused" not in gone.err and "workload 'x' not found" in gone.err
    dev("workload", "create", "run", "--command", "true", "--wait")
    output = dev("workload", "status", "run", "-o", "json").data["output_dir"]
    shown = dev("workload", "delete", "run", "--with-output", "--dry-run")
    assert output in shown.out and Path(output).exists()
