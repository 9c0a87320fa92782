"""A containerd root of a node's own from one that holds the images: gigabytes are linked, kilobytes are copied.

A file of an unpacked layer or a blob is never written to again: containers write to layers of their own. What is
written in place are the two databases, which say what there is.
"""

import pathlib
import shutil
import subprocess

CLONE_S = 300.0
_DATABASES = "io.containerd.*/*.db"


def clone(template: pathlib.Path, root: pathlib.Path) -> None:
    """Make `root` from `template`, in place of what it was; both are on one file system.

    No containerd may run on either. Raises OSError.
    """
    discard(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    command = ["cp", "--archive", "--link", str(template), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLONE_S)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    for database in sorted(template.glob(_DATABASES)):
        own = root / database.relative_to(template)
        own.unlink()
        shutil.copy2(database, own)


def discard(root: pathlib.Path) -> None:
    """Remove a root, if there is one; what it shares with others stays with them."""
    if root.exists():
        shutil.rmtree(root)
