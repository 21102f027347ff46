"""Upload of user code to the hosts.

Small archives are stored in a ConfigMap, larger ones in the bucket or folder that the hosts share. Hosts of
this machine start in a folder with an unpacked snapshot, which later changes to the original do not affect.
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
from xpk.model.errors import AuthorizationError, Modified, NameTaken, NotFoundError, UsageError, XpkError
from xpk.model.specs import Code, Target
from xpk.storage import in_bucket, open_folder

MAX_IN_CONFIGMAP = 700 * 1024  # bytes; with base64 and the other fields, an object is limited to 1 MiB
FOLDER = ".code"  # names of workloads cannot begin with a dot
_UNUSED_SECONDS = 3600.0  # grace period: a workload that uses the code may be about to be created
_TRIES = 5


def place(archive: Archive, cluster_target: Target, target: Target) -> Code:
    """Return the location of an archive for hosts of the cluster `cluster_target` with output at `target`.

    Raises UsageError if no location accepts its size.
    """
    if cluster_target.on_this_machine:
        return Code(name=archive.name, source=f"{cluster_target.output_root}/{FOLDER}/{archive.name}")
    if fits_in_configmap(archive):
        return Code(name=archive.name, archive=archive.content)
    root = target.output_root if in_bucket(target.output_root) else cluster_target.shared_folder
    if root is None or not (in_bucket(root) or os.path.isdir(root)):  # the nodes' folder may not exist here
        raise UsageError(
            f"--script-dir: the code takes {format_size(len(archive.content))} packed, a ConfigMap holds at most "
            f"{format_size(MAX_IN_CONFIGMAP)}",
            hint=f"ship it through a bucket with --output-root gs://BUCKET/PATH, or exclude files in {IGNORE_FILE}",
        )
    return Code(name=archive.name, source=f"{root}/{FOLDER}/{archive.name}.tar.gz")


def fits_in_configmap(archive: Archive) -> bool:
    """Return whether a ConfigMap can hold an archive."""
    return len(archive.content) <= MAX_IN_CONFIGMAP


def upload(api: ObjectApi, archive: Archive, code: Code, target: Target) -> bool:
    """Store an archive at its location, unless that is a ConfigMap; return True if it was not there yet.

    Raises the errors of `Folder`.
    """
    if target.on_this_machine:
        new = _snapshot(archive, Path(code.source))
        _remove_unused(api, Path(code.source).parent, archive.name)
        return new
    parent, _, file = code.source.rpartition("/")
    folder = open_folder(parent)
    new = not folder.has(file)
    if new:
        folder.write(file, archive.content)
    if not in_bucket(parent):
        _keep(Path(code.source))
    if target.exclusive:  # otherwise unknown clusters may use code that this one does not
        _remove_unused(api, Path(parent), archive.name)
    return new


def find_configmap(api: ObjectApi, configmap: Obj) -> Obj | None:
    """Return the existing ConfigMap of this content, None if there is none."""
    meta = configmap["metadata"]
    try:
        return api.get("ConfigMap", meta["name"], meta["namespace"])
    except NotFoundError:
        return None


def share_configmap(api: ObjectApi, configmap: Obj, have: Obj | None, owner: Obj) -> None:
    """Create the ConfigMap, or add the workload `owner` to the owners of the existing one.

    Kubernetes deletes it with its last owner, including after a time to live, when xpk is not running.
    """
    meta, reference = configmap["metadata"], owner_reference(owner)
    for tries_left in reversed(range(_TRIES)):
        try:
            if have is None:
                api.create({**configmap, "metadata": {**meta, "ownerReferences": [reference]}})
                return
            existing_meta = have["metadata"]
            if reference in (owners := existing_meta.get("ownerReferences", [])):
                return
            owners = [*owners, reference]
            # With the version that was read, so that a concurrent owner is not lost.
            change = {"ownerReferences": owners, "resourceVersion": existing_meta["resourceVersion"]}
            api.patch("ConfigMap", meta["name"], {"metadata": change}, meta["namespace"])
            return
        except (NameTaken, Modified, NotFoundError):
            if not tries_left:
                raise
            have = find_configmap(api, configmap)


def owner_reference(owner: Obj) -> Obj:
    """Return the reference with which Kubernetes deletes an object along with its owner."""
    meta = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}


def describe(archive: Archive, *, new: bool) -> str:
    """Return a description of the shipped code for people."""
    files = "1 file" if archive.files == 1 else f"{archive.files} files"
    summary = f"{files}, {format_size(archive.size)}, as {archive.name}"
    return f"code shipped: {summary}" if new else f"code unchanged, not shipped again: {summary}"


def _snapshot(archive: Archive, folder: Path) -> bool:
    """Unpack an archive into a folder atomically; return True if it was not there yet."""
    from xpk.render.unpack import unpack  # imports an HTTP client, which no other command needs

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
                    file.chmod(file.stat().st_mode & ~0o222)  # read-only, since all hosts with this content share it
            fresh.chmod(0o755)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        if folder.is_dir():  # created concurrently
            return False
        raise XpkError(f"cannot write {folder}: {error.strerror}", hint="free some space") from error
    return True


def _keep(path: Path) -> None:
    """Restart the grace period after which unused code is removed."""
    with suppress(OSError):  # owned by another user
        os.utime(path)


def _remove_unused(api: ObjectApi, folder: Path, coming: str) -> None:
    """Remove code that no workload of the cluster uses, except `coming`; entries of other users stay."""
    try:
        jobsets = api.list("JobSet", None)
    except AuthorizationError:  # without access to other namespaces, used code is unknown
        return
    named = {jobset["metadata"].get("annotations", {}).get(names.CODE_ANNOTATION) for jobset in jobsets} | {coming}
    with suppress(OSError):
        for entry in folder.iterdir():
            is_used = entry.name.removesuffix(".tar.gz") in named
            if not is_used and time.time() - entry.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
