"""What Landlock is asked for by version; bits and sizes as in include/uapi/linux/landlock.h of the kernel."""

import pathlib
import struct
import sys

import pytest

from rljob_workers.verifier.sandbox.confinement import landlock
from rljob_workers.verifier.sandbox.confinement.landlock import Fs


@pytest.mark.parametrize(
    ("abi", "last_right", "num_fields"),
    [
        (1, "MAKE_SYM", 1),
        (2, "REFER", 1),
        (3, "TRUNCATE", 1),
        (4, "TRUNCATE", 2),
        (5, "IOCTL_DEV", 2),
        (6, "IOCTL_DEV", 3),
        (7, "IOCTL_DEV", 3),
    ],
)
def test_version_is_asked_for_all_that_it_has_and_nothing_newer(abi: int, last_right: str, num_fields: int) -> None:
    ruleset = landlock.ruleset(abi)
    assert ruleset.files == 2 * Fs[last_right] - 1
    fields = struct.unpack(f"<{num_fields}Q", ruleset.attributes())
    # Files; bind and connect; abstract sockets and signals.
    assert fields == (int(ruleset.files), 0b11, 0b11)[:num_fields]


def test_kernel_without_landlock_has_no_ruleset() -> None:
    with pytest.raises(ValueError, match="from 1 on, not 0"):
        landlock.ruleset(0)


def test_interpreter_and_libraries_may_be_read_and_nothing_may_be_written() -> None:
    interpreter = pathlib.Path(sys.executable).resolve()
    rights = landlock.readable(interpreter)
    assert rights[str(interpreter)] == Fs.READ_FILE | Fs.EXECUTE
    assert rights[str(pathlib.Path(struct.__file__).parent)] == Fs.READ_FILE | Fs.READ_DIR
    assert not any(right & ~(Fs.READ_FILE | Fs.READ_DIR | Fs.EXECUTE) for right in rights.values())


def test_paths_outside_interpreter_and_libraries_are_not_in_the_list() -> None:
    rights = landlock.readable(pathlib.Path(sys.executable).resolve())
    for hidden in ("/proc", "/sys", "/dev", "/etc", "/tmp", "/home"):
        assert not any(pathlib.Path(hidden).resolve().is_relative_to(path) for path in rights), hidden


def test_rights_fit_what_they_are_on() -> None:
    for path, rights in landlock.readable(pathlib.Path(sys.executable).resolve()).items():
        assert pathlib.Path(path).is_dir() or not rights & Fs.READ_DIR, path
