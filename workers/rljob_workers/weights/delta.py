"""What changed between two images, coded without loss. Pure.

An element moves only if its update exceeds half its spacing, and then mostly to the next value: most changes of a step
are one unit in the last place. So a change is its distance from the one before and a signed number of such units, and
the artifact can be read only on top of the very bits that it was made from.

    block   at most `BLOCK_BYTES` of the image: number of changes u64, then frames, each its length u32 and bytes
      gaps    elements between a change and the one before: bytes, where 255 says "255 and what follows"; zstd
      signs   a bit for each change, 1 for up
      planes  |units| - 1, one frame for each byte of an element, low byte first; zstd

Blocks follow from the layout, so that each is coded and applied by itself. Units are differences of the bits as
integers, modulo their width: every change is one, also across zero and to what is no number.
"""

import concurrent.futures
import dataclasses
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy
import zstandard

from rljob_api import errors, types
from rljob_workers.weights import image as images

T = TypeVar("T")
Array: TypeAlias = "numpy.ndarray[Any, Any]"

ENCODING = "delta-1"
# Part of the encoding, as the order of the frames is: a block's changes fit into a processor's cache.
BLOCK_BYTES = 16 << 20
# More changes than this are not coded: a whole image is then nearly as short and is checked on its own.
MOST_CHANGED = 0.30
MOST_BYTES = 0.5
_ESCAPE = 255
# Words of 8 bytes of two images, and the places of those that differ: what fits into the cache of a core.
_WORDS_AT_ONCE = 1 << 14
# By width of an element: the masks of the lowest one of a word, two and three. All bits stand for more than there are.
_LANES = {
    width: tuple(numpy.uint64(min(2 ** (8 * width * number), 2**64) - 1) for number in (1, 2, 3)) for width in (2, 4)
}
_MAGIC = struct.Struct("<I4x")
_COUNT = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_MAGIC_NUMBER = 0x31444C52  # "RLD1"
_UNSIGNED = {2: numpy.uint16, 4: numpy.uint32}
_SIGNED = {2: numpy.int16, 4: numpy.int32}
_LEVEL = 1
_NUM_THREADS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes [start, end) of the image, elements of `width` bytes each; starts and ends are multiples of 64."""

    start: int
    end: int
    width: int

    @property
    def num_elements(self) -> int:
        return (self.end - self.start) // self.width

    def view(self, image: memoryview) -> Array:
        """Return the block's elements as unsigned integers that share the image's bytes."""
        return numpy.frombuffer(image[self.start : self.end], dtype=_UNSIGNED[self.width])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How two images differ. data: the artifact, or None where `reason` says why a whole image is better."""

    changed: int
    data: bytes | None
    reason: str = ""


def blocks(layout: types.Layout) -> list[Block]:
    """Return the blocks of an image in order; padding between tensors belongs to the block before it."""
    runs: list[Block] = []
    for tensor in layout.tensors:
        width = images.WIDTHS[tensor.dtype]
        if runs and runs[-1].width == width:
            continue
        if runs:
            runs[-1] = dataclasses.replace(runs[-1], end=tensor.offset)
        runs.append(Block(start=tensor.offset, end=layout.image_bytes, width=width))
    return [
        Block(start=start, end=min(start + BLOCK_BYTES, run.end), width=run.width)
        for run in runs
        for start in range(run.start, run.end, BLOCK_BYTES)
    ]


def encode(layout: types.Layout, base: memoryview, image: memoryview) -> Difference:
    """Return what turns `base` into `image`. Threads share the blocks and release the interpreter's lock."""
    counts: list[int] = []
    limit = MOST_CHANGED * images.num_elements(layout)

    def coded(block: Block) -> bytes:
        old, new = block.view(base), block.view(image)
        gaps, changes = compare(old, new)
        counts.append(len(changes))
        # Beyond the limit nothing is kept any more; what changed is still counted.
        return b"" if sum(counts) > limit else _encode_block(gaps, changes)

    parts = _on_threads(coded, blocks(layout))
    changed = sum(counts)
    if changed > limit:
        return Difference(changed=changed, data=None, reason=f"{changed / images.num_elements(layout):.0%} changed")
    data = b"".join((_MAGIC.pack(_MAGIC_NUMBER), *parts))
    if len(data) > MOST_BYTES * layout.image_bytes:
        return Difference(changed=changed, data=None, reason=f"a delta has {len(data) / layout.image_bytes:.0%}")
    return Difference(changed=changed, data=data)


def apply(layout: types.Layout, image: memoryview, data: memoryview) -> int:
    """Turn the base in `image` into what `data` was made of; return how many elements changed.

    Raises WireError for bytes that are no delta of this layout. Part of the image may be changed then: it is no
    version any more.
    """
    reader = _Reader(data)
    magic = reader.unpack(_MAGIC)
    if magic != _MAGIC_NUMBER:
        raise errors.WireError("not a delta of weights")
    jobs = [(block, _read_block(block, reader)) for block in blocks(layout)]
    reader.expect_end()
    return sum(_on_threads(lambda job: _apply_block(job[0], job[1], image), jobs))


def compile_loops(layout: types.Layout, base: memoryview, image: memoryview) -> None:
    """Compile what `encode` and `apply` run, before anything waits for it. The images are equal, and stay so."""
    for block in {block.width: block for block in blocks(layout)}.values():
        coded = _encode_block(*compare(block.view(base), block.view(image)))
        _apply_block(block, _read_block(block, _Reader(memoryview(coded))), base)


def compare(old: Array, new: Array) -> tuple[Array, Array]:
    """Return the gaps between the elements where two arrays differ, and new less old there.

    The arrays are of unsigned integers, of a length that is a multiple of 8 bytes. A gap is how many elements lie
    between a change and the one before, or the start: bytes, 255 as often as it goes into that, and the rest.
    """
    # At most a byte for each element; what is not written takes no memory.
    gaps, changes = numpy.empty(len(old), dtype=numpy.uint8), numpy.empty_like(old)
    words = old.view(numpy.uint64), new.view(numpy.uint64)
    num_bytes, count = _compiled()[0](*words, old, new, 8 // old.itemsize, _LANES[old.itemsize], gaps, changes)
    return gaps[:num_bytes], changes[:count]


def patch(elements: Array, gaps: Array, changes: Array) -> int:
    """Add each change to the element that the gaps of `compare` lead to; return how many were added.

    Stops before a change that there is no more of, or whose element would lie outside.
    """
    return int(_compiled()[1](elements, gaps, changes))


@functools.cache
def _compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `_compare` and `_patch` as machine code, half a second after the first call, or three where a step is
    trained at the same time: one pass over what lies in a cache does what takes ten of arrays.
    """
    # Not above: an engine process of vLLM with numba among its modules does not start (vllm/fork_server.py).
    import numba

    compiled = numba.njit(nogil=True)
    return compiled(_compare), compiled(_patch)


def _compare(  # type: ignore[no-untyped-def]  # arrays of either width
    old_words, new_words, old, new, per_word, lanes, gaps, changes
):
    """Fill `gaps` and `changes`; return how much of them. lanes: masks of the lowest elements of a word."""
    lowest, lower, low = lanes
    bits = numpy.uint64(64 // per_word)
    places = numpy.empty(_WORDS_AT_ONCE, dtype=numpy.int64)
    following = num_bytes = count = 0
    for start in range(0, len(old_words), _WORDS_AT_ONCE):
        num_places = 0
        for word in range(start, min(start + _WORDS_AT_ONCE, len(old_words))):
            # Written in any case and kept if it differs: no processor can foresee which do.
            places[num_places] = word
            num_places += old_words[word] != new_words[word]
        for word in places[:num_places]:
            differs = old_words[word] ^ new_words[word]
            while differs != 0:
                lane = int(differs & lowest == 0) + int(differs & lower == 0) + int(differs & low == 0)
                index = word * per_word + lane
                gap = index - following
                while gap >= 255:
                    gaps[num_bytes] = 255
                    num_bytes += 1
                    gap -= 255
                gaps[num_bytes] = gap
                num_bytes += 1
                changes[count] = new[index] - old[index]
                count += 1
                following = index + 1
                differs &= ~(lowest << numpy.uint64(lane) * bits)
    return num_bytes, count


def _patch(elements, gaps, changes):  # type: ignore[no-untyped-def]  # arrays of either width
    index = count = 0
    for gap in gaps:
        index += gap
        if gap == 255:
            continue
        if count == len(changes) or index >= len(elements):
            break
        elements[index] += changes[count]
        count += 1
        index += 1
    return count


def _encode_block(gaps: Array, changes: Array) -> bytes:
    width = changes.itemsize
    units = changes.view(_SIGNED[width])
    up = units > 0
    # |units| - 1 fits, whatever they are: a negative number less one, all bits turned, is its size less one.
    sizes = (units - up) ^ (units >> (8 * width - 1))
    planes = [(sizes >> 8 * index).astype(numpy.uint8) for index in range(width)]
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    frames = [
        compressor.compress(gaps.data),
        numpy.packbits(up).tobytes(),
        *(compressor.compress(plane.tobytes()) for plane in planes),
    ]
    return b"".join((_COUNT.pack(len(changes)), *(_LENGTH.pack(len(frame)) + frame for frame in frames)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Coded:
    count: int
    gaps: memoryview
    signs: memoryview
    planes: Sequence[memoryview]


def _read_block(block: Block, reader: "_Reader") -> _Coded:
    count = reader.unpack(_COUNT)
    if count > block.num_elements:
        raise errors.WireError(f"{count} changes in a block of {block.num_elements} elements")
    gaps, signs, *planes = (reader.take(reader.unpack(_LENGTH)) for _ in range(2 + block.width))
    return _Coded(count=count, gaps=gaps, signs=signs, planes=planes)


def _apply_block(block: Block, coded: _Coded, image: memoryview) -> int:
    count, width = coded.count, block.width
    # Without escapes a gap is a byte; the sum of all bytes is less than the block's elements.
    most = count + block.num_elements // _ESCAPE
    gaps = _decompress(coded.gaps, most=most)
    num_gaps = len(gaps) - int(numpy.count_nonzero(gaps == _ESCAPE))
    if num_gaps != count or len(coded.signs) != -(-count // 8) or (len(gaps) and gaps[-1] == _ESCAPE):
        raise errors.WireError(f"a block of a delta has {num_gaps} gaps for {count} changes")
    planes = numpy.empty((count, width), dtype=numpy.uint8)
    for index, frame in enumerate(coded.planes):
        plane = _decompress(frame, most=count)
        if len(plane) != count:
            raise errors.WireError(f"a block of a delta has {len(plane)} sizes for {count} changes")
        planes[:, index] = plane
    sizes = planes.reshape(-1).view(_SIGNED[width])
    up = numpy.unpackbits(numpy.frombuffer(coded.signs, dtype=numpy.uint8), count=count).astype(_SIGNED[width])
    changes = ((sizes ^ (up - 1)) + up).view(_UNSIGNED[width])
    patched = patch(block.view(image), gaps, changes)
    if patched != count:
        raise errors.WireError(
            f"change {patched + 1} of {count} lies outside its block of {block.num_elements} elements"
        )
    return count


def _decompress(frame: memoryview, *, most: int) -> Array:
    """Return a frame's bytes. Raises WireError before it allocates more than `most` bytes."""
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= most:
            raise errors.WireError(f"a frame of a delta holds {size} bytes where at most {most} fit")
        return numpy.frombuffer(zstandard.ZstdDecompressor().decompress(frame), dtype=numpy.uint8)
    except zstandard.ZstdError as error:
        raise errors.WireError(f"a frame of a delta cannot be decompressed: {error}") from error


class _Reader:
    """A cursor in the artifact."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._position = data, 0

    def take(self, length: int) -> memoryview:
        """Return the next bytes as a view. Raises WireError if they are not there."""
        end = self._position + length
        if end > len(self._data):
            raise errors.WireError(f"a delta of {len(self._data)} bytes ends before byte {end}")
        taken, self._position = self._data[self._position : end], end
        return taken

    def unpack(self, form: struct.Struct) -> int:
        (number,) = form.unpack(self.take(form.size))
        return int(number)

    def expect_end(self) -> None:
        if self._position != len(self._data):
            raise errors.WireError(f"{len(self._data) - self._position} bytes follow the last block of a delta")


def _on_threads(work: Callable[[Any], T], jobs: Sequence[Any]) -> Iterator[T]:
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="delta") as pool:
        return iter(list(pool.map(work, jobs)))
