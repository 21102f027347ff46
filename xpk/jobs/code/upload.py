"""How the user's code gets to the hosts.

Small archives travel as a ConfigMap, larger ones by the bucket or the folder that the hosts share. Hosts of
this machine start in a folder where it is unpacked once: what happens to the original does not reach them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from xpk.api.base import Obj, ObjectApi
from xpk.jobs.code.archive import IGNORE_FILE, Archive, format_size
from xpk.model import names
from xpk.model.errors import AuthorizationError, ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import Code, Target
from xpk.storage import in_bucket, open_folder

MOST_IN_CONFIGMAP = 700 * 1024  # bytes; in base64, and beside the other fields, an object may have 1 MiB
FOLDER = ".code"  # no workload's name begins so
_UNUSED_SECONDS = 3600.0  # code that no workload names may be what one is about to be created with
_TRIES = 5


def place(archive: Archive, own: Target, target: Target) -> Code:
    """Return how an archive gets to hosts whose cluster is `own` and whose output goes to `target`.

    Raises UsageError if there is no way for one of this size.
    """
    if own.on_this_machine:
        return Code(name=archive.name, source=f"{own.output_root}/{FOLDER}/{archive.name}")
    if len(archive.content) <= MOST_IN_CONFIGMAP:
        return Code(name=archive.name, archive=archive.content)
    root = target.output_root if in_bucket(target.output_root) else own.shared_folder
    if root is None or not (in_bucket(root) or os.path.isdir(root)):  # nodes may share what we do not see
        raise UsageError(
            f"--script-dir: the code takes {format_size(len(archive.content))} packed, a ConfigMap holds at most "
            f"{format_size(MOST_IN_CONFIGMAP)}",
            hint=f"--output-root gs://BUCKET/PATH ships it through the bucket; {IGNORE_FILE} leaves files out",
        )
    return Code(name=archive.name, source=f"{root}/{FOLDER}/{archive.name}.tar.gz")


def upload(api: ObjectApi, archive: Archive, code: Code, target: Target) -> bool:
    """Put an archive where hosts find it, unless it travels as a ConfigMap; return whether it was not there yet.

    Raises what `Folder` raises.
    """
    if target.on_this_machine:
        new = _snapshot(archive, Path(code.source))
        _remove_unused(api, Path(code.source).parent, archive.name)
        return new
    where, _, file = code.source.rpartition("/")
    folder = open_folder(where)
    new = not folder.has(file)
    if new:
        folder.write(file, archive.content)
    if not in_bucket(where):
        _keep(Path(code.source))
    if target.exclusive:  # otherwise clusters that we do not know may need what ours does not name
        _remove_unused(api, Path(where), archive.name)
    return new


def find_configmap(api: ObjectApi, wanted: Obj) -> Obj | None:
    """Return the ConfigMap of this content, if it is there."""
    meta = wanted["metadata"]
    try:
        return api.get("ConfigMap", meta["name"], meta["namespace"])
    except NotFoundError:
        return None


def share_configmap(api: ObjectApi, wanted: Obj, have: Obj | None, owner: Obj) -> None:
    """Create the ConfigMap, or make the workload `owner` one more owner of the one that is there.

    Kubernetes removes it with the last of its owners, also when that is removed because its time to live is over:
    then nobody runs xpk who could look.
    """
    meta, reference = wanted["metadata"], owner_reference(owner)
    for _ in range(_TRIES):
        try:
            if have is None:
                api.create({**wanted, "metadata": {**meta, "ownerReferences": [reference]}})
                return
            there = have["metadata"]
            if reference in (owners := there.get("ownerReferences", [])):
                return
            owners = [*owners, reference]
            # The version that was read: another workload that came meanwhile must not lose its place.
            change = {"ownerReferences": owners, "resourceVersion": there["resourceVersion"]}
            api.patch("ConfigMap", meta["name"], {"metadata": change}, meta["namespace"])
            return
        except (ConflictError, NotFoundError):
            have = find_configmap(api, wanted)
    raise ConflictError(f"ConfigMap '{meta['name']}' changes all the time", hint="try again")


def owner_reference(owner: Obj) -> Obj:
    """Return the reference by which Kubernetes removes an object with its owner."""
    mine = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": mine["name"], "uid": mine["uid"]}


def describe(archive: Archive, *, new: bool) -> str:
    """Return what is shipped, for people to read."""
    files = "1 file" if archive.files == 1 else f"{archive.files} files"
    what = f"{files}, {format_size(archive.size)}, as {archive.name}"
    return f"code shipped: {what}" if new else f"code unchanged, not shipped again: {what}"


def _snapshot(archive: Archive, folder: Path) -> bool:
    """Unpack an archive into a folder that is either whole or not there; return whether it was not."""
    from xpk.render.unpack import unpack  # brings an HTTP client, which no other command needs

    if folder.is_dir():
        _keep(folder)
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            unpack(archive.content, archive.name, str(fresh))
            for file in fresh.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    file.chmod(file.stat().st_mode & ~0o222)  # every host of this content starts in it
            fresh.chmod(0o755)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        if folder.is_dir():  # somebody else was faster
            return False
        raise XpkError(f"cannot write {folder}: {error.strerror}", hint="free some space") from error
    return True


def _keep(path: Path) -> None:
    """Begin the time anew after which unused code is removed."""
    with suppress(OSError):  # another user's
        os.utime(path)


def _remove_unused(api: ObjectApi, folder: Path, coming: str) -> None:
    """Remove code that no workload of the cluster names any more, as far as it is ours; not that of one to come."""
    try:
        jobsets = api.list("JobSet", None)
    except AuthorizationError:  # those of other namespaces are not ours to see
        return
    named = {jobset["metadata"].get("annotations", {}).get(names.CODE_ANNOTATION) for jobset in jobsets} | {coming}
    with suppress(OSError):
        for entry in folder.iterdir():
            used = entry.name.removesuffix(".tar.gz") in named
            if not used and time.time() - entry.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
