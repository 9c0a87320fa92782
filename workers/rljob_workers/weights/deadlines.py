"""How long bytes may take: deadlines follow their number, and nothing that still moves is given up.

A deadline that does not know the size either makes large models impossible or leaves a dead peer unnoticed. So a
transfer ends when nothing has moved for `idle_deadline_s`, or at a total that even a slow link keeps. A peer whose
machine is gone is found by the connection's own pings within half a minute (rpc/channel.py).

    140 GB (70 B parameters in bfloat16)   upload or pull 7,060 s in all, 1,460 s without a byte; pause 710 s of silence
    0.27 GB (SmolLM2-135M)                 74 s, 63 s; 11 s
    a piece of 8 MiB                       from another rollout 6.7 s in all
"""

# What a job is served over at least: a link of 160 Mbit/s, a disk, or a copy into a device and its repacking.
LINK_BYTES_PER_S = 20e6
DISK_BYTES_PER_S = 100e6
APPLY_BYTES_PER_S = 200e6
# Streams that a store or a rollout serves at once.
MOST_STREAMS = 4
_IDLE_S = 60.0
_PIECE_S = 5.0
_PAUSE_S = 10.0
_RESTART_S = 600.0
_COLLECTIVE_S = 1800.0
_RECONNECT_S = 600.0
_FINISH_S = 7200.0


def idle_deadline_s(num_bytes: int) -> float:
    """Return how long a transfer of `num_bytes` may show no progress.

    The other end may first write or hash an artifact of this size on its disk, and says nothing meanwhile.
    """
    return _IDLE_S + num_bytes / DISK_BYTES_PER_S


def transfer_deadline_s(num_bytes: int) -> float:
    """Return how long a transfer of `num_bytes` may take in all."""
    return _IDLE_S + num_bytes / LINK_BYTES_PER_S


def piece_deadline_s(num_bytes: int) -> float:
    """Return how long a rollout may take to send another one `num_bytes`, which it can ask a third one for.

    It may serve as many streams over its link as it may serve at once.
    """
    return _PIECE_S + MOST_STREAMS * num_bytes / LINK_BYTES_PER_S


def broadcast_deadline_s(num_bytes: int, *, size: int) -> float:
    """Return how long a broadcast in a group of `size` may take in all: whoever waits for it then asks others.

    The first member's link carries a copy for each round of a tree.
    """
    return _PIECE_S + size.bit_length() * num_bytes / LINK_BYTES_PER_S


def pause_deadline_s(num_bytes: int) -> float:
    """Return how long an engine may be paused for an image of `num_bytes` without loading any of it."""
    return _PAUSE_S + num_bytes / APPLY_BYTES_PER_S


def restart_deadline_s(num_bytes: int) -> float:
    """Return how long a new engine may take: its start, and the model files from a slow disk."""
    return _RESTART_S + read_s(num_bytes)


def collective_deadline_s(num_bytes: int) -> float:
    """Return how long ranks wait for one another: rank 0 may be publishing an image of `num_bytes`."""
    return _COLLECTIVE_S + transfer_deadline_s(num_bytes)


def reconnect_deadline_s(num_bytes: int) -> float:
    """Return how long a store that failed is asked again to take `num_bytes`: its restart on another node, with its
    volume, and one more upload.
    """
    return _RECONNECT_S + transfer_deadline_s(num_bytes)


def last_checkpoint_deadline_s(num_bytes: int) -> float:
    """Return how long a run that ends waits for its last checkpoint, of `num_bytes`, to reach an object store."""
    return _FINISH_S + transfer_deadline_s(num_bytes)


def read_s(num_bytes: int) -> float:
    """Return how long files of `num_bytes` take from a slow disk."""
    return num_bytes / DISK_BYTES_PER_S
