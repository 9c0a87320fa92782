"""A delta turns its base into the very bits that it was made of, or is refused."""

import struct

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import errors, types
from rljob_workers.weights import delta, image

DTYPES = st.sampled_from(["bfloat16", "float16", "float32"])
SHAPES = st.lists(st.integers(1, 40), min_size=0, max_size=3).map(tuple)
# Bits of bfloat16: zeros of both signs, the smallest and largest subnormals, the smallest normal, one, infinity, NaN.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F80, 0x7F80, 0xFF80, 0x7FC0]


@st.composite
def layouts(draw: st.DrawFn) -> types.Layout:
    tensors = draw(st.lists(st.tuples(DTYPES, SHAPES), min_size=1, max_size=5))
    return image.make_layout((f"model.layers.{index}.w", dtype, shape) for index, (dtype, shape) in enumerate(tensors))


def random_image(layout: types.Layout, generator: numpy.random.Generator) -> bytearray:
    data = bytearray(layout.image_bytes)
    for tensor in layout.tensors:
        data[tensor.offset : tensor.offset + tensor.length] = generator.bytes(tensor.length)
    return data


def changed_image(
    layout: types.Layout, base: bytearray, generator: numpy.random.Generator, *, share: float, steps: bool
) -> bytearray:
    """Change about `share` of the elements: by one unit in the last place, or to any bits."""
    data = bytearray(base)
    for tensor in layout.tensors:
        elements = numpy.frombuffer(
            memoryview(data)[tensor.offset : tensor.offset + tensor.length], dtype=width(tensor)
        )
        chosen = generator.random(len(elements)) < share
        other = elements + generator.choice(numpy.array([1, -1], dtype=numpy.int8), len(elements)).astype(
            elements.dtype
        )
        if not steps:
            other = numpy.frombuffer(generator.bytes(tensor.length), dtype=elements.dtype)
        elements[chosen] = other[chosen]
    return data


def width(tensor: types.TensorSpec) -> "numpy.dtype[numpy.unsignedinteger[numpy.typing.NBitBase]]":
    return numpy.dtype(numpy.uint32 if tensor.dtype == "float32" else numpy.uint16)


def count_changed(layout: types.Layout, one: bytearray, other: bytearray) -> int:
    return sum(
        int(
            numpy.count_nonzero(
                numpy.frombuffer(one, width(tensor), tensor.length // width(tensor).itemsize, tensor.offset)
                != numpy.frombuffer(other, width(tensor), tensor.length // width(tensor).itemsize, tensor.offset)
            )
        )
        for tensor in layout.tensors
    )


@settings(deadline=None)
@given(
    layout=layouts(),
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.0, 0.001, 0.02, 0.2, 1.0]),
    steps=st.booleans(),
)
@pytest.mark.covers("weights 4", "weights 14")
def test_a_base_and_its_delta_give_the_image_bit_for_bit(
    layout: types.Layout, seed: int, share: float, steps: bool
) -> None:
    generator = numpy.random.default_rng(seed)
    base = random_image(layout, generator)
    new = changed_image(layout, base, generator, share=share, steps=steps)
    coded = delta.encode(layout, memoryview(base), memoryview(new))
    assert coded.changed == count_changed(layout, base, new)
    if coded.data is None:
        assert coded.changed > delta.MOST_CHANGED * image.num_elements(layout) or "a delta has" in coded.reason
        return
    patched = bytearray(base)
    assert delta.apply(layout, memoryview(patched), memoryview(coded.data)) == coded.changed
    assert patched == new


def test_every_change_between_special_numbers_is_one() -> None:
    """Signed zeros, subnormals, infinities and what is no number: each to each other."""
    # As many again that stay, so that a delta is what a version travels as.
    pairs = [(old, new) for old in SPECIAL for new in SPECIAL if old != new]
    still = [(0x3F80, 0x3F80)] * 40 * len(pairs)
    layout = image.make_layout([("model.norm.weight", "bfloat16", (len(pairs) + len(still),))])
    base, new = bytearray(layout.image_bytes), bytearray(layout.image_bytes)
    for index, (before, after) in enumerate(pairs + still):
        struct.pack_into("<H", base, 2 * index, before)
        struct.pack_into("<H", new, 2 * index, after)
    coded = delta.encode(layout, memoryview(base), memoryview(new))
    assert coded.data is not None
    assert delta.apply(layout, memoryview(base), memoryview(coded.data)) == len(pairs)
    assert base == new


@settings(deadline=None)
@given(positions=st.sets(st.integers(0, 4999)), dtype=st.sampled_from([numpy.uint16, numpy.uint32]))
def test_gaps_are_a_byte_each_but_for_escapes_and_lead_back_to_the_positions(
    positions: set[int], dtype: type[numpy.unsignedinteger[numpy.typing.NBitBase]]
) -> None:
    ascending = numpy.array(sorted(positions), dtype=numpy.int64)
    old = numpy.full(5000, 7, dtype=dtype)
    new = old.copy()
    new[ascending] -= ascending.astype(dtype) + dtype(1)
    gaps, changes = delta.compare(old, new)
    between = numpy.diff(ascending, prepend=-1) - 1
    assert len(gaps) == sum(1 + int(gap) // 255 for gap in between)
    assert delta.patch(old, gaps, changes) == len(positions)
    assert old.tolist() == new.tolist()


@pytest.mark.parametrize(
    ("gaps", "added"), [([0, 0], 2), ([0, 0, 0], 2), ([3, 0], 1), ([4, 0], 0), ([255, 0], 0), ([], 0)]
)
def test_a_patch_never_leaves_its_elements_nor_its_changes(gaps: list[int], added: int) -> None:
    elements, changes = numpy.zeros(4, dtype=numpy.uint16), numpy.ones(2, dtype=numpy.uint16)
    assert delta.patch(elements, numpy.array(gaps, dtype=numpy.uint8), changes) == added
    assert elements.sum() == added


def large_layout() -> types.Layout:
    """Return a layout of three blocks and a piece."""
    rows = 3 * delta.BLOCK_BYTES // 2048 + 5
    return image.make_layout(
        [("model.embed_tokens.weight", "bfloat16", (rows, 1024)), ("norm.weight", "float32", (3,))]
    )


def test_blocks_cover_the_image_once_and_never_mix_widths() -> None:
    layout = large_layout()
    blocks = delta.blocks(layout)
    assert [block.start for block in blocks[1:]] == [block.end for block in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].end) == (0, layout.image_bytes)
    assert [block.width for block in blocks] == [2, 2, 2, 2, 4]
    assert all(block.end - block.start <= delta.BLOCK_BYTES for block in blocks)


def test_changes_at_the_borders_of_blocks_are_kept() -> None:
    layout = large_layout()
    base = bytearray(layout.image_bytes)
    new = bytearray(base)
    edges = [0, delta.BLOCK_BYTES - 2, delta.BLOCK_BYTES, 2 * delta.BLOCK_BYTES - 2, layout.tensors[1].offset + 8]
    for edge in edges:
        new[edge] = 1
    coded = delta.encode(layout, memoryview(base), memoryview(new))
    assert coded.data is not None
    assert coded.changed == len(edges)
    delta.apply(layout, memoryview(base), memoryview(coded.data))
    assert base == new


LAYOUT = image.make_layout([("model.layers.0.w", "bfloat16", (64, 64)), ("model.norm.weight", "bfloat16", (64,))])


def a_delta(*, share: float = 0.02) -> tuple[bytearray, bytes]:
    generator = numpy.random.default_rng(1)
    base = random_image(LAYOUT, generator)
    new = changed_image(LAYOUT, base, generator, share=share, steps=True)
    coded = delta.encode(LAYOUT, memoryview(base), memoryview(new))
    assert coded.data is not None
    return base, coded.data


@pytest.mark.covers("weights 4")
def test_a_step_that_changes_more_than_three_tenths_is_not_coded_and_still_counted() -> None:
    generator = numpy.random.default_rng(1)
    base = random_image(LAYOUT, generator)
    new = changed_image(LAYOUT, base, generator, share=0.35, steps=True)
    coded = delta.encode(LAYOUT, memoryview(base), memoryview(new))
    assert (coded.data, coded.changed) == (None, count_changed(LAYOUT, base, new))
    assert coded.reason.endswith("% changed")


@pytest.mark.covers("weights 4")
def test_a_delta_of_more_than_half_the_image_is_not_used() -> None:
    """Two elements of which one becomes anything: frames alone are longer than the image."""
    layout = image.make_layout([("model.norm.weight", "bfloat16", (4,))])
    base = bytearray(layout.image_bytes)
    new = bytearray(base)
    new[0] = 9
    coded = delta.encode(layout, memoryview(base), memoryview(new))
    assert (coded.data, coded.changed) == (None, 1)
    assert coded.reason.startswith("a delta has")


@settings(deadline=None, max_examples=300)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@pytest.mark.covers("weights 14")
def test_a_flipped_bit_gives_another_image_or_an_error_and_nothing_else(place: float, bit: int) -> None:
    """What arrives is checked by its digest first; even without, damage is an error of ours or shows in the hashes."""
    base, data = a_delta()
    damaged = bytearray(data)
    damaged[int(place * len(data))] ^= 1 << bit
    image_bytes = bytearray(base)
    try:
        delta.apply(LAYOUT, memoryview(image_bytes), memoryview(damaged))
    except errors.WireError:
        return
    right = bytearray(base)
    delta.apply(LAYOUT, memoryview(right), memoryview(data))
    harmless = image_bytes == right
    # Bits that pad a byte of signs, and those that zstd keeps for later, carry nothing.
    assert harmless or image.digests(memoryview(image_bytes), LAYOUT) != image.digests(memoryview(right), LAYOUT)


@pytest.mark.parametrize("length", [0, 7, 8, 20, -1])
def test_a_delta_cut_short_is_refused(length: int) -> None:
    base, data = a_delta()
    with pytest.raises(errors.WireError):
        delta.apply(LAYOUT, memoryview(base), memoryview(data)[:length])


def test_bytes_after_the_last_block_are_refused() -> None:
    base, data = a_delta()
    with pytest.raises(errors.WireError, match="1 bytes follow"):
        delta.apply(LAYOUT, memoryview(base), memoryview(data + b"x"))


def test_a_frame_that_says_it_is_huge_is_refused_before_it_is_unpacked() -> None:
    base, data = a_delta()
    huge = bytearray(data)
    # magic 8, count 8, length 4: the frame of gaps with its magic number, descriptor, and the size of its content.
    start = 20
    length = struct.unpack_from("<I", data, 16)[0]
    fake = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", 1 << 40)
    huge[start : start + length] = fake + bytes(length - len(fake))
    with pytest.raises(errors.WireError, match=f"holds {1 << 40} bytes where at most"):
        delta.apply(LAYOUT, memoryview(base), memoryview(huge))


def test_a_version_without_changes_is_a_few_bytes() -> None:
    base = random_image(LAYOUT, numpy.random.default_rng(2))
    coded = delta.encode(LAYOUT, memoryview(base), memoryview(bytearray(base)))
    assert coded.data is not None
    assert (coded.changed, delta.apply(LAYOUT, memoryview(bytearray(base)), memoryview(coded.data))) == (0, 0)
    assert len(coded.data) < 100
