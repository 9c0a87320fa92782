"""The micro-batch contract, against a slow reference that lays every row out alone."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import enums, types
from rljob_workers.coordinator.batching import blocks, packing


def sample(
    *,
    row: int,
    group: str = "g",
    prompt: Sequence[int] = (1, 2, 3),
    completion: Sequence[int] = (4, 5),
    mask: Sequence[int] | None = None,
    advantage: float = 1.0,
    masked: bool = False,
) -> types.TrainSample:
    flags = [0] * len(prompt) + [1] * len(completion) if mask is None else list(mask)
    count = sum(flags)
    return types.TrainSample(
        group_id=types.GroupId(group),
        sample_index=row % 8,
        row=row,
        tokens=types.ints([*prompt, *completion]),
        loss_mask=types.mask(flags),
        logprobs=types.floats([-0.25 * (i + 1) * flag for i, flag in enumerate(flags)]),
        version_steps=types.ints(range(row, row + count)),
        advantages=types.floats([advantage * (i + 1) for i in range(count)]),
        raw_reward=1.0,
        shaped_reward=2.0,
        masked=masked,
        group=row // 8,
        rewards=types.floats([0.5 * row + i for i in range(count)]),
        turn_ids=types.ints([i // 2 for i in range(count)]),
    )


def shape(*, minibatches: int = 1, epochs: int = 1, world_size: int = 1, max_tokens: int = 1000) -> packing.Shape:
    return packing.Shape(seed=3, minibatches=minibatches, epochs=epochs, world_size=world_size, max_tokens=max_tokens)


def test_rows_of_one_prompt_are_laid_out_once_with_their_completions_as_children() -> None:
    rows = [sample(row=0, completion=(4, 5)), sample(row=1, completion=(6,))]
    (batch,) = packing.pack(rows, step=1, shape=shape()).micro_batches[0]
    assert list(batch.tokens) == [1, 2, 3, 4, 5, 6]
    assert list(batch.position_ids) == [0, 1, 2, 3, 4, 3]
    assert [(s.start, s.end, s.parent) for s in batch.segments] == [(0, 3, -1), (3, 5, 0), (5, 6, 0)]
    assert list(batch.target_index) == [3, 4, 5]
    assert list(batch.predictor_index) == [2, 3, 2]
    assert list(batch.row_index) == [0, 0, 1]
    assert list(batch.logprobs) == [-1.0, -1.25, -1.0]
    assert list(batch.advantages) == [1.0, 2.0, 1.0]
    assert list(batch.version_steps) == [0, 1, 1]
    assert [(r.row, r.num_tokens) for r in batch.rows] == [(0, 2), (1, 1)]


def test_a_conversation_that_forks_is_laid_out_as_a_tree() -> None:
    """The picture of blocks.py: two rows fork after 6, one goes another way before it, one ends there.

    Each trains its own tokens: what the first three sampled after 1 2 3 is inserted text in the last one.
    """
    rows = [
        sample(row=0, completion=(6, 7, 8), mask=(0, 0, 0, 1, 0, 1)),
        sample(row=1, completion=(4, 5)),
        sample(row=2, completion=(6,)),
        sample(row=3, completion=(6, 9), mask=(0, 0, 0, 0, 1)),
    ]
    packed = packing.pack(rows, step=1, shape=shape())
    (batch,) = packed.micro_batches[0]
    assert list(batch.tokens) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert list(batch.position_ids) == [0, 1, 2, 3, 4, 3, 4, 5, 4]
    assert [(s.start, s.end, s.parent) for s in batch.segments] == [
        (0, 3, -1), (3, 5, 0), (5, 6, 0), (6, 8, 2), (8, 9, 2),
    ]  # fmt: skip
    assert [header.row for header in batch.rows] == [1, 0, 3, 2]
    assert list(batch.row_index) == [0, 0, 1, 1, 2, 3]
    assert list(batch.target_index) == [3, 4, 5, 7, 8, 5]
    assert list(batch.predictor_index) == [2, 3, 2, 6, 5, 2]
    assert (packed.computed_tokens, packed.unique_tokens, packed.row_tokens) == (9, 9, 6 + 5 + 4 + 5)


def test_rows_that_begin_with_different_tokens_are_different_trees() -> None:
    rows = [sample(row=0, prompt=(1, 2)), sample(row=1, prompt=(8, 2)), sample(row=2, prompt=(1, 3))]
    assert [[row.row for row in tree.rows] for tree in blocks.trees(rows)] == [[0, 2], [1]]


def test_equal_rows_take_the_tokens_of_one() -> None:
    packed = packing.pack([sample(row=row) for row in range(3)], step=1, shape=shape())
    (batch,) = packed.micro_batches[0]
    assert list(batch.tokens) == [1, 2, 3, 4, 5]
    assert list(batch.target_index) == [3, 4] * 3
    assert [header.row for header in batch.rows] == [0, 1, 2]


def conversations(*, turns: int, forks: int, tokens: int) -> list[types.TrainSample]:
    """Rows of a tree that is `turns` deep, each turn but the last with `forks` continuations of `tokens` tokens."""
    paths: list[list[int]] = [[1]]
    for turn in range(turns):
        paths = [[*path, *(100 * turn + fork + 2,) * tokens] for path in paths for fork in range(forks)]
    return [sample(row=row, prompt=path[:1], completion=path[1:]) for row, path in enumerate(paths)]


@pytest.mark.parametrize("max_tokens", [31, 50, 70, 100, 150])
def test_a_tree_over_the_budget_is_cut_where_it_forks(max_tokens: int) -> None:
    """27 rows of 31 tokens, 391 as a tree of 3 x 3 x 3 forks: what lies above a cut is repeated, and nothing else."""
    rows = conversations(turns=3, forks=3, tokens=10)
    (tree,) = blocks.trees(rows)
    assert tree.num_tokens == 391
    parts = blocks.split(tree, max_tokens=max_tokens)
    assert all(part.num_tokens <= max_tokens for part in parts)
    assert sorted(row.row for part in parts for row in part.rows) == list(range(27))
    # What is below a fork and fits is in one part: the least that any division has.
    fits = {31: 27 * 31, 50: 9 * (21 + 20) + 9 * 31, 70: 9 * 51, 100: 9 * 51, 150: 3 * 131}[max_tokens]
    assert sum(part.num_tokens for part in parts) <= fits


def test_a_part_that_is_full_leaves_the_next_fork_to_another() -> None:
    """A comb: each row leaves the longest one a little earlier. Parts fill up from the deepest fork on."""
    spine = list(range(2, 42))
    rows = [sample(row=0, prompt=(1,), completion=spine)]
    rows += [sample(row=cut, prompt=(1,), completion=[*spine[:cut], 99]) for cut in range(1, 40)]
    (tree,) = blocks.trees(rows)
    assert tree.num_tokens == 41 + 39
    parts = blocks.split(tree, max_tokens=60)
    # 19 rows leave the longest one behind its 21st token; the 20th row is the longest of the others.
    assert [part.num_tokens for part in parts] == [41 + 19, 22 + 19]
    assert parts == sorted(parts, key=lambda part: part.first_row)


def test_a_tree_that_is_deeper_than_calls_may_be_is_divided() -> None:
    """A comb of 1300 rows: the 499 deepest fill what the longest one leaves of 1800, the others share 801 tokens."""
    spine = list(range(2, 1302))
    rows = [sample(row=0, prompt=(1,), completion=spine)]
    rows += [sample(row=cut, prompt=(1,), completion=[*spine[:cut], 1]) for cut in range(1, 1300)]
    parts = blocks.split(blocks.trees(rows)[0], max_tokens=1800)
    assert [part.num_tokens for part in parts] == [1301 + 499, 802 + 799]


def test_groups_that_begin_alike_are_one_tree_from_sixteen_tokens_on() -> None:
    rows = [sample(row=0, group="a"), sample(row=1, group="b")]
    (batch,) = packing.pack(rows, step=1, shape=shape()).micro_batches[0]
    assert [s.parent for s in batch.segments] == [-1, -1]
    system = tuple(range(50, 66))
    asked = {"a": (1,), "b": (2, 3), "c": (1, 4)}
    rows = [
        sample(row=row, group=group, prompt=(*system, *question), completion=(7 + row,))
        for row, (group, question) in enumerate((name, asked[name]) for name in "aabbc")
    ]
    packed = packing.pack(rows, step=1, shape=shape())
    (batch,) = packed.micro_batches[0]
    assert list(batch.tokens) == [*system, 1, 4, 11, 7, 8, 2, 3, 9, 10]
    assert [(s.start, s.end, s.parent) for s in batch.segments] == [
        (0, 16, -1), (16, 17, 0), (17, 19, 1), (19, 20, 1), (20, 21, 1), (21, 23, 0), (23, 24, 5), (24, 25, 5)
    ]  # fmt: skip
    assert [header.group_id for header in batch.rows] == ["c", "a", "a", "b", "b"]
    assert packed.row_tokens == 2 * 18 + 2 * 19 + 19
    assert packed.unique_tokens == 25


def test_groups_with_pictures_stay_apart_whatever_their_tokens_are() -> None:
    shown = types.Picture(start=0, data=b"png")
    rows = [
        dataclasses.replace(sample(row=row, group=f"g{row}", prompt=(9,) * 20), pictures=(shown,)) for row in range(2)
    ]
    assert len(blocks.merged(blocks.trees(rows))) == 2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5), st.sampled_from([200, 500, 2000]))
def test_no_rank_computes_more_for_what_groups_have_in_common(seed: int, ranks: int, max_tokens: int) -> None:
    random = Random(seed)
    begins = [tuple(random.randrange(50, 999) for _ in range(random.randrange(10, 40))) for _ in range(2)]
    rows: list[types.TrainSample] = []
    for group in range(random.randrange(1, 12)):
        prompt = (*random.choice(begins), group)
        rows += [
            sample(row=len(rows) + i, group=f"g{group}", prompt=prompt, completion=(2 + i,) * random.randrange(1, 80))
            for i in range(4)
        ]
    cut = shape(world_size=ranks, max_tokens=max_tokens)
    shared = packing.pack(rows, step=1, shape=cut)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(blocks, "SHARED_TOKENS", 1 << 20)
        apart = packing.pack(rows, step=1, shape=cut)
    for rank, rank_apart in zip(shared.micro_batches, apart.micro_batches, strict=True):
        assert sum(len(batch.tokens) for batch in rank) <= sum(len(batch.tokens) for batch in rank_apart)
        assert all(len(batch.tokens) <= max_tokens for batch in rank)
    assert shared.unique_tokens <= shared.computed_tokens
    assert shared.minibatches == apart.minibatches
    trained = sorted(header.row for rank in shared.micro_batches for batch in rank for header in batch.rows)
    assert trained == list(range(len(rows)))


def test_a_shared_block_over_the_budget_is_split_with_its_prompt_repeated() -> None:
    rows = [sample(row=i, completion=(10 + i,) * 3) for i in range(4)]
    batches = packing.pack(rows, step=1, shape=shape(max_tokens=9)).micro_batches[0]
    assert [len(batch.tokens) for batch in batches] == [9, 9]
    assert all(list(batch.tokens[:3]) == [1, 2, 3] for batch in batches)


def test_a_row_over_the_budget_is_not_split() -> None:
    (batch,) = packing.pack([sample(row=0, completion=(4,) * 50)], step=1, shape=shape(max_tokens=10)).micro_batches[0]
    assert len(batch.tokens) == 53


def test_rows_without_anything_to_learn_are_left_out_but_counted() -> None:
    rows = [sample(row=0, advantage=0.0), sample(row=1, masked=True), sample(row=2)]
    packed = packing.pack(rows, step=1, shape=shape())
    assert [header.row for batch in packed.micro_batches[0] for header in batch.rows] == [2]
    assert packed.minibatches == (types.Minibatch(num_tokens=6, num_rows=3),)


def test_an_update_may_have_no_micro_batch_at_all() -> None:
    packed = packing.pack([sample(row=0, advantage=0.0)], step=1, shape=shape(world_size=2))
    assert packed.micro_batches == ((), ())
    assert packed.minibatches == (types.Minibatch(num_tokens=2, num_rows=1),)


@pytest.mark.covers("algorithms 11")
def test_one_row_of_32_is_looked_at_of_those_that_have_nothing_to_learn_in_the_first_epoch() -> None:
    rows = [sample(row=i, group=f"g{i}", advantage=float(i < 4), masked=i == 5) for i in range(100)]
    cut = dataclasses.replace(shape(epochs=2), observes_skipped=True)
    packed = packing.pack(rows, step=1, shape=cut)
    computed: list[set[int]] = [set(), set()]
    for batch in packed.micro_batches[0]:
        computed[batch.update] |= {header.row for header in batch.rows}
    assert computed[1] == {0, 1, 2, 3}
    looked_at = computed[0] - computed[1]
    assert len(looked_at) == 4
    assert 5 not in looked_at
    assert packed == packing.pack(rows, step=1, shape=cut), "the same ones whenever it is packed"
    everything = dataclasses.replace(cut, keep_zero_advantage=True)
    kept = packing.pack(rows, step=1, shape=everything).micro_batches[0]
    assert {header.row for batch in kept for header in batch.rows} == set(range(100)) - {5}


def test_one_group_is_divided_when_ranks_would_be_idle() -> None:
    rows = [sample(row=i, completion=(10 + i, 5)) for i in range(4)]
    packed = packing.pack(rows, step=1, shape=shape(world_size=2))
    assert [[header.row for batch in rank for header in batch.rows] for rank in packed.micro_batches] == [
        [0, 1],
        [2, 3],
    ]


def loads(packed: packing.Packed) -> list[int]:
    return [sum(len(batch.tokens) for batch in rank) for rank in packed.micro_batches]


def groups_of_8(lengths: Sequence[Sequence[int]], *, prompt: int = 16) -> list[types.TrainSample]:
    rows: list[types.TrainSample] = []
    for group, members in enumerate(lengths):
        rows += [
            sample(row=len(rows) + i, group=f"g{group}", prompt=(100 + group,) * prompt, completion=(2 + i,) * length)
            for i, length in enumerate(members)
        ]
    return rows


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize(
    ("ranks", "groups"), [(64, 64), (64, 65), (64, 96), (64, 128), (64, 160), (8, 9), (8, 12), (8, 16)]
)
@pytest.mark.parametrize("lengths", ["equal", "long-tailed"])
def test_no_rank_waits_for_a_fuller_one_whatever_number_of_groups_is_left(
    ranks: int, groups: int, lengths: str
) -> None:
    """Groups with a spread of rewards are what is trained, so their number is another one each step."""
    random = Random(1)
    drawn = [
        [64 if lengths == "equal" else max(4, min(640, int(64 * random.lognormvariate(0, 0.8)))) for _ in range(8)]
        for _ in range(groups)
    ]
    shares = loads(packing.pack(groups_of_8(drawn), step=1, shape=shape(world_size=ranks, max_tokens=4096)))
    whole = sum(16 + sum(members) for members in drawn)
    assert sum(shares) <= 1.15 * whole, "prompts that are repeated cost tokens"
    if lengths == "equal" and (ranks, groups) == (64, 65):
        # 520 rows on 64 ranks: one has 9 at least, and the ninth is of another group.
        assert max(shares) == (16 + 8 * 64) + (16 + 64)
    else:
        assert whole / ranks / max(shares) >= 0.9


def test_a_block_is_not_cut_where_its_prompt_costs_more_than_the_cut_gains() -> None:
    """Two groups on two ranks: a cut would put a prompt of 1000 tokens on both ranks."""
    rows = groups_of_8([[10] * 8, [40] * 8], prompt=1000)
    assert loads(packing.pack(rows, step=1, shape=shape(world_size=2, max_tokens=4096))) == [1320, 1080]


def test_the_cut_depends_on_step_and_epoch() -> None:
    rows = [sample(row=i) for i in range(32)]
    cuts = {
        tuple(row.row for row in packing.cut(rows, key=(3, step, epoch), parts=2)[0])
        for step in (1, 2)
        for epoch in (0, 1)
    }
    assert len(cuts) == 4


@pytest.mark.covers("algorithms 8", "algorithms 15")
def test_1024_rows_in_minibatches_of_128_are_8_updates() -> None:
    """128 prompts x 8 samples, one epoch."""
    rows = [sample(row=i) for i in range(1024)]
    assert [len(part) for part in packing.cut(rows, key=(0, 1, 0), parts=8)] == [128] * 8


@pytest.mark.covers("algorithms 1", "algorithms 15")
def test_250_steps_of_4_minibatches_are_1000_updates() -> None:
    rows = [sample(row=i, completion=(4,)) for i in range(4)]
    steps = [packing.pack(rows, step=step, shape=shape(minibatches=4)) for step in range(1, 251)]
    assert sum(len(packed.minibatches) for packed in steps) == 1000


@st.composite
def steps(draw: st.DrawFn) -> list[types.TrainSample]:
    rows: list[types.TrainSample] = []
    for group in range(draw(st.integers(1, 5))):
        prompt = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
        # Few tokens: completions fork, and are equal or begin one another.
        token = st.integers(10, draw(st.sampled_from([11, 12, 99])))
        for _ in range(draw(st.integers(1, 5))):
            completion = draw(st.lists(token, min_size=1, max_size=8))
            multi_turn = draw(st.integers(0, 4)) == 0 and len(completion) > 2
            mask = [0] * len(prompt) + [1] * len(completion)
            if multi_turn:
                mask[len(prompt) + 1] = 0
            rows.append(
                sample(
                    row=len(rows), group=f"g{group}", prompt=prompt, completion=completion, mask=mask,
                    advantage=draw(st.sampled_from([0.0, 1.0, -0.5])), masked=draw(st.integers(0, 7)) == 0,
                )
            )  # fmt: skip
    return rows


shapes = st.builds(
    shape,
    minibatches=st.integers(1, 3),
    epochs=st.integers(1, 2),
    world_size=st.integers(1, 4),
    max_tokens=st.integers(14, 60),
)


def token_facts(batch: types.MicroBatch) -> list[tuple[object, ...]]:
    """Return, per sampled token, everything that a loss may depend on, read off the layout: its whole visible
    context.
    """

    def context(position: int) -> tuple[int, ...]:
        segment = next(s for s in batch.segments if s.start <= position < s.end)
        seen = list(batch.tokens[segment.start : position + 1])
        while segment.parent >= 0:
            segment = batch.segments[segment.parent]
            seen[:0] = batch.tokens[segment.start : segment.end]
        return tuple(seen)

    facts: list[tuple[object, ...]] = []
    for n, (target, predictor) in enumerate(zip(batch.target_index, batch.predictor_index, strict=True)):
        seen = context(predictor)
        assert batch.position_ids[predictor] == len(seen) - 1
        assert batch.position_ids[target] == len(seen)
        facts.append(
            (batch.rows[batch.row_index[n]].row, batch.rows[batch.row_index[n]].group, batch.tokens[target], seen,
             batch.logprobs[n], batch.advantages[n], batch.version_steps[n], batch.rewards[n], batch.turn_ids[n])
        )  # fmt: skip
    return facts


def reference(rows: Sequence[types.TrainSample]) -> Counter[tuple[object, ...]]:
    """The same facts from the rows themselves, one token at a time."""
    facts: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        if row.masked or not any(row.advantages):
            continue
        sampled = [i for i, flag in enumerate(row.loss_mask) if flag]
        for n, i in enumerate(sampled):
            facts[
                (
                    row.row,
                    row.group,
                    row.tokens[i],
                    tuple(row.tokens[:i]),
                    row.logprobs[i],
                    row.advantages[n],
                    row.version_steps[n],
                    row.rewards[n],
                    row.turn_ids[n],
                )
            ] += 1
    return facts


@pytest.mark.covers("algorithms 8")
@settings(max_examples=150, deadline=None)
@given(steps(), shapes)
def test_every_token_with_something_to_learn_appears_once_an_epoch_with_its_own_context(
    rows: list[types.TrainSample], cut: packing.Shape
) -> None:
    packed = packing.pack(rows, step=4, shape=cut)
    wanted = reference(rows)
    for epoch in range(cut.epochs):
        updates = range(epoch * cut.minibatches, (epoch + 1) * cut.minibatches)
        batches = [batch for rank in packed.micro_batches for batch in rank if batch.update in updates]
        assert Counter(fact for batch in batches for fact in token_facts(batch)) == wanted


@settings(max_examples=100, deadline=None)
@given(steps(), shapes)
def test_segments_tile_each_micro_batch_and_parents_come_first(
    rows: list[types.TrainSample], cut: packing.Shape
) -> None:
    longest = max(len(row.tokens) for row in rows)
    for rank in packing.pack(rows, step=4, shape=cut).micro_batches:
        assert [batch.update for batch in rank] == sorted(batch.update for batch in rank)
        for batch in rank:
            assert [s.start for s in batch.segments] == [0, *(s.end for s in batch.segments[:-1])]
            assert batch.segments[-1].end == len(batch.tokens)
            paths: list[list[int]] = []
            for number, segment in enumerate(batch.segments):
                # The descendants of a segment follow it without a gap: a parent is on the path to the one before.
                assert segment.parent < 0 or segment.parent in paths[-1]
                paths.append([*(paths[segment.parent] if segment.parent >= 0 else []), number])
            assert len(batch.tokens) <= max(cut.max_tokens, longest)


@settings(max_examples=100, deadline=None)
@given(steps(), shapes, shapes)
def test_denominators_do_not_depend_on_ranks_or_budget(
    rows: list[types.TrainSample], one: packing.Shape, other: packing.Shape
) -> None:
    same_cut = packing.Shape(
        seed=one.seed, minibatches=one.minibatches, epochs=one.epochs, world_size=other.world_size,
        max_tokens=other.max_tokens,
    )  # fmt: skip
    first, second = packing.pack(rows, step=4, shape=one), packing.pack(rows, step=4, shape=same_cut)
    assert first.minibatches == second.minibatches
    per_epoch = first.minibatches[: one.minibatches]
    assert sum(part.num_rows for part in per_epoch) == len(rows)
    assert sum(part.num_tokens for part in per_epoch) == sum(sum(row.loss_mask) for row in rows)
    assert max(part.num_rows for part in per_epoch) - min(part.num_rows for part in per_epoch) <= 1


@pytest.mark.covers("algorithms 10")
@settings(max_examples=100, deadline=None)
@given(steps(), shapes)
def test_no_rank_has_more_than_its_part_and_a_row(rows: list[types.TrainSample], cut: packing.Shape) -> None:
    """Each rank's load stays within its part and the largest that a block of single rows can be: a row is not split."""
    cut = dataclasses.replace(cut, minibatches=1, epochs=1)
    packed = packing.pack(rows, step=4, shape=cut)
    longest = max(len(row.tokens) for row in rows)
    alone = sum(len(row.tokens) for row in rows if packing.is_active(row, shape=cut))
    assert max(loads(packed)) <= alone / cut.world_size + longest


@given(steps(), shapes)
def test_packing_is_deterministic_whatever_the_order_of_rows(rows: list[types.TrainSample], cut: packing.Shape) -> None:
    first, second = packing.pack(rows, step=4, shape=cut), packing.pack(rows[::-1], step=4, shape=cut)
    assert [[list(b.tokens) for b in rank] for rank in first.micro_batches] == [
        [list(b.tokens) for b in rank] for rank in second.micro_batches
    ]


def test_long_completions_share_micro_batches_first_fit_decreasing() -> None:
    rows = [sample(row=i, group=f"g{i}", completion=(9,) * n) for i, n in enumerate((7, 3, 5, 5))]
    batches = packing.pack(rows, step=1, shape=shape(max_tokens=16)).micro_batches[0]
    assert sorted(len(batch.tokens) for batch in batches) == [16, 16]


def test_rows_without_advantage_are_kept_where_an_entropy_term_needs_them() -> None:
    rows = [sample(row=0, advantage=0.0), sample(row=1, masked=True), sample(row=2)]
    kept = dataclasses.replace(shape(), keep_zero_advantage=True)
    packed = packing.pack(rows, step=1, shape=kept)
    assert sorted(header.row for batch in packed.micro_batches[0] for header in batch.rows) == [0, 2]


def test_masked_rows_are_kept_where_statistics_over_tokens_need_them() -> None:
    rows = [sample(row=0, advantage=0.0), sample(row=1, masked=True), sample(row=2)]
    kept = dataclasses.replace(shape(), keep_masked=True)
    packed = packing.pack(rows, step=1, shape=kept)
    assert sorted(header.row for batch in packed.micro_batches[0] for header in batch.rows) == [1, 2]


def test_rows_of_nothing_but_old_tokens_are_not_computed_and_count_in_denominators() -> None:
    """The rows have tokens of steps 0, 1 and 3, 4 and 5, 6: from step 4 on two of them have something to train."""
    rows = [sample(group=f"g{row}", row=row, prompt=(row, 2, 3)) for row in (0, 3, 5)]
    packed = packing.pack(rows, step=7, shape=dataclasses.replace(shape(), oldest_step=4))
    (batch,) = packed.micro_batches[0]
    assert sorted(header.row for header in batch.rows) == [3, 5]
    assert batch.oldest_step == 4
    assert packed.minibatches == (types.Minibatch(num_tokens=6, num_rows=3),)


def shown(row: types.TrainSample, *pictures: types.Picture) -> types.TrainSample:
    return dataclasses.replace(row, pictures=pictures)


def test_pictures_of_a_group_stand_once_in_a_tree_where_its_prompt_does() -> None:
    first, second = types.Picture(start=1, data=b"a"), types.Picture(start=2, data=b"b")
    rows = [
        shown(sample(row=0, completion=(4, 5)), first),
        shown(sample(row=1, completion=(6,)), first),
        shown(sample(row=2, group="h", completion=(7, 8, 9, 10)), first, second),
    ]
    (batch,) = packing.pack(rows, step=1, shape=shape()).micro_batches[0]
    # The larger tree comes first: 7 tokens, then 6.
    assert [(picture.start, picture.data) for picture in batch.pictures] == [(1, b"a"), (2, b"b"), (8, b"a")]
    assert [batch.tokens[picture.start] for picture in batch.pictures] == [2, 3, 2]


def test_the_halves_of_a_divided_group_have_its_pictures_each() -> None:
    picture = types.Picture(start=0, data=b"a")
    rows = [shown(sample(row=row, completion=range(100 * row + 9, 100 * row + 49)), picture) for row in range(4)]
    packed = packing.pack(rows, step=1, shape=shape(world_size=2))
    assert [[batch.pictures for batch in rank] for rank in packed.micro_batches] == [[(picture,)], [(picture,)]]


def test_a_micro_batch_holds_no_more_bytes_of_pictures_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enums, "MAX_BATCH_PICTURES_BYTES", 10)
    rows = [shown(sample(row=8 * row, group=str(row)), types.Picture(start=0, data=b"12345")) for row in range(5)]
    batches = packing.pack(rows, step=1, shape=shape()).micro_batches[0]
    assert sorted(len(batch.pictures) for batch in batches) == [1, 2, 2]
