"""Command lines of gcluster and of Google's xpk: translated by tables into command lines that this xpk accepts."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xpk
from tests.cli.conftest import Xpk
from tests.docs.parsing import parse
from xpk.cli import google_xpk
from xpk.cli.main import xpk as program
from xpk.cli.translate.command_lines import translate_text, translate_words
from xpk.cli.translate.flags import Translation
from xpk.cli.translate.gcluster import table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "migrating-from-gcluster.md"
UPSTREAM = Path(__file__).parents[1] / "workload" / "upstream_lines.txt"
REQUIRED = ("--name", "w", "--command", "true", "--compute-type", "v6e-16")
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs", "Co")), max_size=12)
# Values that each conversion accepts; the others take any text.
VALUES = {
    "integer": st.integers(0, 99).map(str),
    "seconds": st.sampled_from(["90", "90s", "5m", "1h30m", "0.5h", "250ms"]),
    "timeout": st.sampled_from(["-1s", "600", "10m"]),
    "zone": st.sampled_from(["us-central1-a", "us-central1", "northamerica-northeast1-b"]),
    "priority": st.sampled_from(["low", "Medium", "HIGH"]),
    "mount": st.sampled_from(["gs://b/p;/data", "claim;/data;rw", "gs://b:/data:rw", "/dev/shm;/dev/shm;rw"]),
    "provisioning": st.sampled_from(["spot", "on-demand", "reservation"]),
}
TYPES = ("v6e-16", "v5p-64", "v4-8", "ct5lp-hightpu-4t", "tpu7x-32", "l4-1", "n2-standard-32", "nvidia-h100-80gb")


def translated(line: str) -> Translation:
    """Return the translation of one command line."""
    (result,) = translate_text(line, program)
    return result


def rows() -> list[tuple[str, str, list[str]]]:
    """Return the examples of the page: a command line, its translation, and the parts that are not translated."""
    section = PAGE.read_text(encoding="utf-8").partition("## Examples")[2].partition("\n## ")[0]
    cells = [re.split(r"(?<!\\) \| ", row.strip("| \n")) for row in section.splitlines() if row.startswith("| `")]
    return [
        (line.strip("`").replace("\\|", "|"), here.strip("`").replace("\\|", "|"), re.findall(r"`([^`]+)`", lost))
        for line, here, lost in cells
    ]


@pytest.mark.parametrize(("line", "here", "lost"), rows(), ids=range(len(rows())))
def test_every_example_of_the_guide_is_accepted_or_refused_by_name(line: str, here: str, lost: list[str]) -> None:
    done = translated(line)
    assert (done.command or "–") == (line if here == "the same" else here)
    assert sorted({note.part for note in done.notes if note.lost}) == sorted(lost)
    assert all(note.text for note in done.notes)
    if done.command:
        parse(list(done.words))


def test_the_page_has_every_command_and_flag_of_the_table() -> None:
    assert len(rows()) >= 60
    text = PAGE.read_text(encoding="utf-8")
    for path, row in table().items():
        assert f"`{path}" in text.replace("`create`, `expand`, `render`", "`create` `expand` `render`"), path
        for name, flag in row.get("flags", {}).items():
            for spelling in (name, flag.get("short", name), *flag.get("old", ())):
                assert f"`{spelling}" in text, spelling


@st.composite
def submissions(draw: st.DrawFn) -> list[str]:
    """Return the words of a `gcluster job submit` with any of its flags, each with a value that gcluster accepts."""
    words = ["--name", "w", "--command", draw(TEXTS), "--compute-type", draw(st.sampled_from(TYPES))]
    flags = table()["job submit"]["flags"]
    names = draw(st.lists(st.sampled_from(sorted({*flags} - {"--name", "--command", "--compute-type"})), unique=True))
    for name in names:
        row = flags[name]
        if row.get("switch"):
            words.append(name)
            continue
        number = name in ("--num-slices", "--num-nodes", "--vms-per-slice")
        value = st.integers(1, 9).map(str) if number else VALUES.get(row.get("form", ""), TEXTS)
        value = st.sampled_from(["4x4", "2x2x2"]) if name == "--topology" else value
        value = st.sampled_from(list(row["values"])) if "values" in row else value
        words += [f"{name}={draw(value)}"] if draw(st.booleans()) else [name, draw(value)]
    return words


@settings(max_examples=300, deadline=None)
@given(submissions())
def test_translated_command_lines_are_accepted_by_the_program(words: list[str]) -> None:
    done = translate_words(["gcluster", "job", "submit", *words], program)
    assert done == translated(done.source), "the same words, quoted for a shell"
    assert done.complete == (not any(note.lost for note in done.notes))
    if done.command is None:
        assert not done.complete
        return
    assert shlex.split(done.command) == ["xpk", *done.words]
    parse(list(done.words))


def upstream_lines() -> list[str]:
    """Return the documented lines of Google's xpk that are accepted."""
    lines = UPSTREAM.read_text(encoding="utf-8").splitlines()
    return [line.split("|", 2)[2].strip() for line in lines if line.startswith("taken")]


@pytest.mark.parametrize("line", upstream_lines())
def test_lines_of_googles_xpk_are_translated_into_lines_that_the_program_accepts(line: str) -> None:
    done = translated(f"xpk workload {line}")
    assert done.command is not None and "unknown" not in str(done.notes)
    parse(list(done.words))
    assert not {*done.words} & {*google_xpk.WORKLOAD, "create-pathways"}


@pytest.mark.parametrize(
    ("kind", "flags", "here"),
    [
        ("v6e-8", "", "--tpu-type v6e-8"),
        ("v5e-16", "", "--tpu-type v5litepod-16"),
        ("v4-8", "", "--tpu-type v4-8"),
        ("v4-16", "", "--tpu-type v4-32"),
        ("v5p-64", "", "--tpu-type v5p-128"),
        ("v5p-64", "--topology 4x4x4", "--tpu-type v5p-128"),
        ("tpu7x-32", "--topology 2x4x4 --num-slices 2", "--tpu-type tpu7x-64 --num-slices 2"),
        ("ct6e-standard-4t", "--topology 16x16", "--tpu-type v6e-256"),
        ("ct5lp-hightpu-4t", "--topology 4x8", "--tpu-type v5litepod-32"),
        ("tpu-v6e-slice", "--topology 4x4", "--tpu-type v6e-16"),
        ("ct6e-standard-4t", "", ""),
        ("v6e-4", '--topology "$TOPOLOGY"', '--tpu-type "v6e-$TOPOLOGY"'),
        ("l4-1", "--num-nodes 4", "--tpu-type l4-1 --num-nodes 4"),
        ("a3-megagpu-8g", "--num-slices 2 --num-nodes 4", "--tpu-type h100-mega-80gb-8 --num-nodes 8"),
        ("nvidia-h200-141gb", "", "--tpu-type h200-141gb-8"),
        ("n2-standard-32", "--num-slices 2 --num-nodes 4", "--tpu-type n2-standard-32-4 --num-slices 2"),
    ],
)
def test_accelerators_are_those_of_the_same_size(kind: str, flags: str, here: str) -> None:
    done = translated(f"gcluster job submit --name w --command true --compute-type {kind} {flags}")
    start = "xpk workload create w --command true " + (f"{here} " if here else "")
    assert done.command == f"{start}--max-restarts 1 --ttl-seconds-after-finished 3600" and done.complete


@pytest.mark.parametrize(
    ("value", "here"),
    [
        ("gs://b/p;/data", "--mount source=gs://b/p,target=/data,readonly"),
        ("gs://b;/data;rw;options=implicit-dirs", "--mount source=gs://b,target=/data"),
        ("pvc://claim;/data;ro", "--mount source=claim,target=/data,readonly"),
        ("claim:/data:rw", "--mount source=claim,target=/data"),
        (
            "gs://b:/data,claim:/more",
            "--mount source=gs://b,target=/data,readonly --mount source=claim,target=/more,readonly",
        ),
        ("/dev/shm;/dev/shm;rw", "--node-folder /dev/shm"),
    ],
)
def test_mounts_are_translated(value: str, here: str) -> None:
    done = translate_words(["gcluster", "job", "submit", *REQUIRED, "--mount", value], program)
    assert done.complete and f"--tpu-type v6e-16 {here} --max" in str(done.command)


@pytest.mark.parametrize(
    ("flags", "part", "says"),
    [
        ("--mount filestore://i/s;/d", "--mount", "xpk storage attach NAME --type gcpfilestore"),
        ("--mount gs://b;/d;rw;options=uid=1000", "--mount", "--mount-options uid=1000`"),
        ("--mount gs://b", "--mount", "is not SOURCE;TARGET"),
        ("--mount b;data", "--mount", "is not SOURCE;TARGET"),
        ("--mount b;/data;rx", "--mount", "is not SOURCE;TARGET"),
        ("--mount /ssd;/data;rw", "--mount", "mounted at /ssd, not at /data"),
        ("--grace-period soon", "--grace-period", "expected a time such as 90s, 5m or 2h, got 'soon'"),
        ("--restarts many", "--restarts", "expected a number, got 'many'"),
        ("--priority urgent", "--priority", "choose from very-low, low, medium, high, very-high"),
        ("--num-slices many", "--num-slices", "expected a number, got 'many'"),
        ("--image-pull-secret a,b", "--image-pull-secret", "only 'a' is used"),
        ("--gke-nap-provisioning flex", "--gke-nap-provisioning", "pass --on-demand, --spot or --reservation"),
        ("--node-constraint a=b", "--node-constraint", "xpk docs queues"),
        ("--compute-typ v6e-4", "--compute-typ", "the closest are --compute-type"),
        ("--queue", "--queue", "it has no value"),
        ("extra", "extra", "unexpected argument"),
        ("--compute-type v6e-7", "--compute-type", "unknown accelerator type 'v6e-7': the closest are v6e-8"),
        ("--compute-type nvidia-l4", "--compute-type", "choose from l4-1, l4-2, l4-4, l4-8"),
        ("--pathways-headless", "--pathways-headless", "pass --command"),
    ],
)
def test_what_has_no_equivalent_is_named_with_what_to_do(flags: str, part: str, says: str) -> None:
    done = translate_words(["gcluster", "job", "submit", *REQUIRED, *flags.split()], program)
    assert not done.complete
    assert [note.part for note in done.notes if note.lost and says in note.text] == [part], done.notes


@pytest.mark.parametrize(
    ("line", "part", "says"),
    [
        ("gcluster", "gcluster", "unknown command"),
        ("gcluster jobs list", "gcluster jobs list", "the closest are job list"),
        ("gcluster job logs", "gcluster job logs", "expected a name"),
        ("gcluster job config set project", "gcluster job config set", "expected a setting and its value"),
        ("gcluster job submit --name w --command x --num-slices 2", "--compute-type", "gcluster requires this flag"),
        ("gcluster job submit --name w", "--command", "gcluster requires this flag"),
        ("gcluster deploy x.yaml", "gcluster deploy", "xpk cluster adapt"),
        ("xpk workload creat", "xpk workload creat", "the closest are create"),
        ("xpk", "xpk", "unknown command"),
        ("xpk kind create", "kind", "--provider kind"),
        ("xpk workload create-pathways --headless --cluster c", "--headless", "pass --command"),
    ],
)
def test_a_command_without_an_equivalent_is_refused_by_name(line: str, part: str, says: str) -> None:
    done = translated(line)
    assert done.command is None and not done.complete
    assert part in [note.part for note in done.notes if says in note.text], done.notes


@pytest.mark.parametrize(
    ("line", "here"),
    [
        ("xpk workload delete --cluster c", "xpk workload delete --cluster c --all"),
        ("xpk workload delete w --cluster c", "xpk workload delete w --cluster c"),
        ("xpk workload delete --filter-by-job=a", "xpk workload delete --filter-by-job a"),
        (
            "xpk cluster cacheimage --cluster c --docker-image i --cache-key k",
            "xpk cluster cache-image --cluster c --docker-image i",
        ),
        (
            "xpk workload create --workload w --dry-run --command 'a b'",
            "xpk workload create --workload w --dry-run --command 'a b'",
        ),
        ("xpk workload create w -- --config tiny", "xpk workload create w -- --config tiny"),
        (
            "python3/xpk.py cluster create --cluster c --authorized-networks 10.0.0.0/8 192.168.0.0/16",
            "xpk cluster create --cluster c --authorized-networks 10.0.0.0/8,192.168.0.0/16",
        ),
    ],
)
def test_lines_of_googles_xpk_keep_their_meaning(line: str, here: str) -> None:
    done = translated(line)
    assert (done.command, done.complete) == (here, True)


def test_variables_stay_variables() -> None:
    line = 'gcluster job submit --name "$N" --command "run $X" --compute-type "$T" --num-slices $S --grace-period $G'
    done = translated(line)
    assert str(done.command).startswith('xpk workload create "$N" --command "run $X" --tpu-type "$T" --num-slices "$S"')
    assert {note.part for note in done.notes} == {"--compute-type", "--grace-period"} and "$N" in done.words
    assert translated('gcluster job submit --name w --command "$C" --compute-type v6e-4 --restarts "$R"').complete
    (unknown,) = translated('gcluster job list --status "$S" "$X"').notes[1:]
    assert (unknown.part, unknown.lost) == ("--status", True)


def test_switches_that_are_false_are_left_out() -> None:
    done = translated("gcluster job logs w --follow=false --main-only=true")
    assert done.command == "xpk workload logs w" and [note.part for note in done.notes] == ["--main-only"]


def test_the_command_prints_commands_notes_and_an_exit_code(xpk: Xpk) -> None:
    done = xpk("translate", "gcluster job logs w -f -c prod")
    assert (done.code, done.out, done.err) == (0, "xpk workload logs w --follow --cluster prod\n", "")
    assert xpk("translate", "gcluster", "job", "logs", "w", "-f", "-c", "prod") == done
    assert xpk("translate", "--", "./gcluster", "job", "logs", "w", "-fcprod") == done
    lossy = xpk("translate", "gcluster job list --status Suspended")
    assert (lossy.code, lossy.out) == (1, "xpk workload list\n")
    assert lossy.err == "warning: --status is not translated: `xpk workload list` shows the phase of each workload\n"


def test_lines_of_standard_input_are_numbered(xpk: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# a script\ngcluster job list\n\ngcluster deploy \\\n  x.yaml\nxpk version\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    done = xpk("translate")
    assert (done.code, done.out) == (1, "xpk workload list\nxpk version\n")
    assert done.err.startswith("warning: line 4: gcluster deploy is not translated: ")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    data = json.loads(xpk("translate", "-o", "json", "-").out)
    assert [(item["line"], item["command"], item["complete"]) for item in data] == [
        (2, "xpk workload list", True),
        (4, None, False),
        (6, "xpk version", True),
    ]


def test_standard_input_that_is_not_text_is_refused(xpk: Xpk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("gcluster job logs \udcff"))
    done = xpk("translate")
    assert done.code == 2 and "error: standard input is not valid UTF-8\n  hint: " in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("translate", "kubectl get pods"), "line 1: 'kubectl' is neither gcluster nor xpk"),
        (("translate", "kubectl"), "'kubectl' is neither gcluster nor xpk"),
        (("translate", "gcluster job list | wc"), "line 1: shell operator '|' in `gcluster job list`"),
        (("translate", "ls | wc"), "line 1: shell operator '|'"),
        (("translate", "   "), "there is no command line to translate"),
        (("gcluster", "job", "list", "--status", "Suspended"), "--status has no equivalent"),
        (("gcluster", "deploy", "x.yaml"), "gcluster deploy has no equivalent"),
    ],
)
def test_wrong_usage_is_one_line_with_a_hint(xpk: Xpk, words: tuple[str, ...], says: str) -> None:
    done = xpk(*words)
    assert done.code == 2 and done.out == "" and f"error: {says}" in done.err and "hint: " in done.err


@pytest.mark.parametrize(
    ("line", "says", "hint"),
    [
        ('gcluster create x.yaml --vars "ip=$(curl ifconfig.me)/32"', "gcluster create", "there are no blueprints"),
        ("$GCLUSTER job submit --name $(date)", "gcluster job submit", "assign its output to a variable"),
    ],
)
def test_what_needs_a_shell_is_refused_with_its_command(line: str, says: str, hint: str) -> None:
    with pytest.raises(xpk.UsageError) as error:
        translate_text(line, program)
    assert error.value.message == f"line 1: command substitution in `{says}`" and hint in error.value.hint


@pytest.mark.parametrize("start", ["$GCLUSTER", '"$GCLUSTER"', "${GCLUSTER}", "../gcluster", "$TOOLKIT/gcluster"])
def test_a_variable_may_name_gcluster(start: str) -> None:
    assert translated(f"{start} job describe w").command == "xpk workload describe w"
    with pytest.raises(xpk.UsageError, match="neither gcluster nor xpk"):
        translated(f"{start}x job list")


def test_commands_of_gcluster_run_their_translation(dev: Xpk) -> None:
    submit = ("job", "submit", "--name", "w", "--command", "echo hello", "--compute-type", "v5e-8", "--image", "i")
    done = dev("gcluster", *submit, "--await-job-completion")
    assert done.code == 0, done.err
    assert "xpk workload create w --command 'echo hello' --tpu-type v5litepod-8" in done.err
    assert "hello" in dev("gcluster", "job", "logs", "w").out
    assert dev("--quiet", "gcluster", "job", "cancel", "w").err == ""
    assert dev("gcluster", "job", "logs", "w").code == 3


def test_gcluster_is_not_in_the_help_but_has_its_own(xpk: Xpk) -> None:
    assert "gcluster job" not in xpk("--help").out
    assert "xpk gcluster job list" in xpk("gcluster", "--help").out


def test_a_program_translates_command_lines() -> None:
    first, second = xpk.translate("gcluster job list --cluster prod\nxpk workload list --cluster prod")
    assert first.command == second.command == "xpk workload list --cluster prod"
    assert first.complete and first.words == ("workload", "list", "--cluster", "prod")
    with pytest.raises(xpk.UsageError, match="'kubectl' is neither gcluster nor xpk"):
        xpk.translate("kubectl get pods")
