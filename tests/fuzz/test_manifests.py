"""Any values of a workload: the manifest, parsed again, has exactly these values, and nothing else changes."""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.counts import inputs
from tests.render.workloads import EMULATED, ON_GKE, ON_KIND, workload
from xpk.model.specs import ImageCacheSpec
from xpk.render import render_image_cache, render_workload, to_yaml
from xpk.render.template import render_template

PIECES = ["{{ 7*7 }}", "{% for x in y %}", "{#", "#}", "{%- raw %}", "\n", "\n  - x: y\n", "\r\n", "\t", "---\n",
          "...\n", "'", '"', '\\"', "\\", "\\n", "\\u0041", "\\ud83d", "\\ude00", "😀", "𐀀", "é", "\u0085", "\u2028",
          "\ufeff", "\x7f", "\x00", "\x1b[31m", "*a", "&a", "!!python/object:os.system", "| ", "> ", "# x", ": ", "- ",
          "? ", "@", "`", "%YAML 1.1", "null", "~", "yes", "0x10", "1e3", "010", "2026-01-01", "<<", "=", "$(NAME)",
          "$$(NAME)", "$", "$(", "a" * 2000, " ", ","]  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"])  # command lines and files in UTF-8 have no lone surrogates
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(CHARACTERS, max_size=9), max_size=5).map("".join)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
TARGETS = [EMULATED, ON_KIND, ON_GKE]


def expanded(text: str) -> str:
    """Return a value as the kubelet expands it (k8s.io/kubernetes/third_party/forked/golang/expansion)."""
    made, at = "", 0
    while at < len(text):
        following = text[at + 1 : at + 2]
        if text[at] != "$" or not following:
            made, at = made + text[at], at + 1
        elif following == "$":
            made, at = made + "$", at + 2
        elif following == "(" and ")" in text[at:]:
            made, at = made + "EXPANDED", text.index(")", at) + 1
        else:
            made, at = made + "$" + following, at + 2
    return made


def check(objects: list[dict[str, Any]]) -> None:
    """Check that what is sent and what is printed are the same."""
    assert json.loads(json.dumps(objects)) == objects
    assert list(yaml.load_all(to_yaml(objects), yaml.CSafeLoader)) == objects


def host(objects: list[dict[str, Any]]) -> Any:
    return objects[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


@functools.cache
def plain_host(target: int) -> Any:
    return host(render_workload(workload(target=TARGETS[target], command=("x",))))


@inputs(0.015)
@given(
    target=st.sampled_from([0, 1, 2]),
    command=st.lists(TEXTS, min_size=1, max_size=3),
    env=st.dictionaries(NAMES, TEXTS, max_size=3),
    image=TEXTS,
)
@example(target=2, command=["😀\\ud83d\\ude00", "\x7f\\x7f"], env={"A": "\u0085{{ w }}"}, image="x")
def test_any_command_and_environment(target: int, command: list[str], env: dict[str, str], image: str) -> None:
    spec = workload(target=TARGETS[target], command=tuple(command), env=env, image=image, peer_watch=False)
    objects = render_workload(spec)
    container = host(objects)
    plain = plain_host(target)
    parts = [*container["command"], *container.get("args", [])]
    assert list(map(expanded, parts[-len(command) :])) == command
    assert container["image"] == image
    variables = {item["name"]: item for item in container["env"]}
    assert {name: expanded(variables.pop(name)["value"]) for name in env} == env
    assert variables == {item["name"]: item for item in plain["env"] if item["name"] not in env}
    check(objects)


@inputs(0.015)
@given(
    values=st.dictionaries(st.sampled_from(["working_dir", "image_pull_secret", "scheduler", "user", "queue"]), TEXTS)
)
def test_any_other_text(values: dict[str, str]) -> None:
    objects = render_workload(workload(target=ON_GKE, **values))
    spec = objects[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container = host(objects)
    if values.get("working_dir"):
        assert container["workingDir"] == values["working_dir"]
    if values.get("scheduler"):
        assert spec["schedulerName"] == values["scheduler"]
    if values.get("image_pull_secret"):
        assert spec["imagePullSecrets"] == [{"name": values["image_pull_secret"]}]
    if values.get("queue"):
        assert objects[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == values["queue"]
    check(objects)


TREES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS.filter(lambda key: len(key) < 60), inner, max_size=3)
    ),
    max_leaves=6,
)


@inputs(0.04)
@given(tree=TREES)
@example(tree={"{{ 7*7 }}": "\\ud83d😀\x7f\u2028"})
def test_any_value_in_a_template(tree: Any) -> None:
    """Also as the key of a field."""
    view: dict[str, Any] = {
        "name": "q", "annotations": {"a": tree}, "cohort": None, "preemption": {"x": tree}, "checks": [tree],
        "groups": {},
    }  # fmt: skip
    (queue, *_) = render_template("kueue/queue.yaml.j2", q={"namespaces": ["a"], "name": "q"}, c=view)
    assert queue["spec"]["preemption"] == {"x": tree}


@inputs(0.01)
@given(images=st.lists(TEXTS, min_size=1, max_size=2), pools=st.lists(TEXTS, min_size=1, max_size=2))
def test_any_image_and_node_pool_of_the_cache(images: list[str], pools: list[str]) -> None:
    spec = ImageCacheSpec(images=tuple(images), pools=tuple(pools), taints=(), seconds=60)
    objects = render_image_cache(spec)
    text = json.dumps(objects)
    assert all(json.dumps(image) in text for image in images)
    check(objects)
