import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from llmclick.data.order import Stream, held_out_count, in_hash_order, rank, split, total_steps

IDS = [f"row{n}" for n in range(200)]


def test_counts_by_hand() -> None:
    """A share is rounded and at least one row; a count is a count."""
    assert held_out_count(0.1, 200) == 20
    assert held_out_count(0.1, 5) == 1
    assert held_out_count(0.1, 1) == 1
    assert held_out_count(0.25, 10) == 2
    assert held_out_count(64, 100) == 64
    assert held_out_count(0.35, 90) == 32  # a half goes to the even number; the floats' product is 31.499999999999996
    assert held_out_count(0.07, 150) == 10  # and 10.500000000000002 here


def test_split_is_disjoint_and_whole() -> None:
    """Every row is on exactly one side, the training side in the rows' order."""
    train, held = split(IDS, IDS, 0.1, 7)
    assert len(held) == 20
    assert sorted(train + held) == list(range(200))
    assert train == sorted(train)


def test_five_rows_have_one_held_out() -> None:
    """With few rows the held-out part is one row and no copy of training."""
    train, held = split(IDS[:5], IDS[:5], 0.1, 1)
    assert (len(train), len(held)) == (4, 1)
    assert not set(train) & set(held)


def test_held_out_rows_are_the_first_by_hash() -> None:
    """The held-out rows are those with the smallest SHA-256 of ("split", seed, id), in that order."""
    expected = sorted(range(200), key=lambda i: rank("split", 7, IDS[i]))[:20]
    assert split(IDS, IDS, 20, 7)[1] == expected
    assert in_hash_order(IDS, 7)[:20] == expected
    assert split(IDS, IDS, 20, 8)[1] != expected


def test_split_does_not_depend_on_the_order_of_the_file() -> None:
    """The same rows in another order give the same sides."""
    held = {IDS[i] for i in split(IDS, IDS, 0.1, 3)[1]}
    back = IDS[::-1]
    assert {back[i] for i in split(back, back, 0.1, 3)[1]} == held


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.one_of(st.integers(1, 40), st.floats(0.01, 0.99)),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_equal_prompts_stay_together(groups: list[int], validation: int | float, seed: int) -> None:
    """No prompt is on both sides, whatever the groups, and something is always held out."""
    ids = [f"id{n}" for n in range(len(groups))]
    prompts = [f"prompt{g}" for g in groups]
    train, held = split(ids, prompts, validation, seed)
    assert sorted(train + held) == list(range(len(ids)))
    assert held
    assert not {prompts[i] for i in train} & {prompts[i] for i in held}


def test_a_group_that_is_too_large_is_passed_over() -> None:
    """With one row to hold out and a prompt that occurs nine times, a single row is taken."""
    prompts = ["same"] * 9 + ["other", "third"]
    for seed in range(20):
        _, held = split(IDS[:11], prompts, 1, seed)
        assert held in ([9], [10])


def test_one_prompt_only_leaves_training_empty() -> None:
    """All rows with one prompt cannot be split; the caller sees an empty side."""
    assert split(IDS[:3], ["same"] * 3, 1, 0)[0] == []


def test_every_epoch_holds_every_row_once() -> None:
    """Three epochs of 10 rows in batches of 4: 8 batches, the last of 2, each epoch a new order of all rows."""
    stream = Stream(IDS[:10], epochs=3, per_batch=4, seed=1)
    assert len(stream) == 8
    draws = [draw for number in range(8) for draw in stream.batch(number)]
    assert [len(stream.batch(number)) for number in range(8)] == [4] * 7 + [2]
    epochs = [[draw.index for draw in draws if draw.epoch == epoch] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_is_the_same_whatever_was_asked_before() -> None:
    """A resumed run asks for batch 5 first and gets what the uninterrupted run got."""
    straight = Stream(IDS[:10], epochs=3, per_batch=4, seed=1)
    batches = [straight.batch(number) for number in range(8)]
    for number in (5, 2, 7, 0):
        assert Stream(IDS[:10], epochs=3, per_batch=4, seed=1).batch(number) == batches[number]
        assert straight.batch(number) == batches[number]


def test_order_is_the_hash_of_seed_epoch_and_row() -> None:
    """Epoch 1's order sorts rows by SHA-256 of ("epoch", seed, 1, id)."""
    stream = Stream(IDS[:10], epochs=2, per_batch=10, seed=4)
    assert stream.epoch(1) == sorted(range(10), key=lambda i: rank("epoch", 4, 1, IDS[i]))


def test_a_row_twice_in_one_batch_draws_other_numbers() -> None:
    """Two rows, batches of 5, 3 epochs: a row's second place in a batch has a key of its own."""
    draws = Stream(["a", "b"], epochs=3, per_batch=5, seed=0).batch(0)
    assert len(draws) == 5
    assert len({draw.key for draw in draws}) == 5
    assert {draw.key for draw in draws} <= {"a", "a+1", "a+2", "b", "b+1", "b+2"}


@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 9))
@settings(deadline=None)
def test_nothing_is_dropped(rows: int, epochs: int, per_batch: int) -> None:
    """Over all batches every row occurs exactly `epochs` times."""
    stream = Stream(IDS[:rows], epochs=epochs, per_batch=per_batch, seed=2)
    counts = Counter(draw.index for number in range(len(stream)) for draw in stream.batch(number))
    assert counts == dict.fromkeys(range(rows), epochs)


def test_steps_by_hand() -> None:
    """217 rows x 2 epochs in steps of 2 x 2: ceil(434 / 4) = 109; times 3 iterations 327; max_steps cuts."""
    assert total_steps(217, epochs=2, batch_size=2, accumulation=2) == 109
    assert total_steps(217, epochs=2, batch_size=2, accumulation=2, iterations=3) == 327
    assert total_steps(217, epochs=2, batch_size=2, accumulation=2, iterations=3, max_steps=4) == 4
    assert total_steps(1, epochs=1, batch_size=8, accumulation=4) == 1
    assert total_steps(10, epochs=3, batch_size=4, accumulation=1) == len(Stream(IDS[:10], epochs=3, per_batch=4, seed=1))
    assert math.ceil(434 / 4) == 109
