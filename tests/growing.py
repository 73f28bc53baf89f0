"""State of random shapes and types to which runs add rows."""

import numpy as np

import dataflow as df

TYPES = (df.float32, df.float64, df.float16, df.int64, df.int32, df.int8, df.uint8, df.bool_)


def check_rows(rng, devices, *, views=False, **how):
    """Runs that add rows along a random axis leave all of them; returns the kinds of memory that they lay in.

    Where ``views`` are asked for, a view of the state is a result.
    """
    type_ = TYPES[rng.integers(len(TYPES))]
    rank = int(rng.integers(2, 5))
    axis, other = (int(n) for n in rng.permutation(rank)[:2])
    sizes = [int(n) for n in rng.integers(1, 5, rank)]
    sizes[axis] = int(rng.integers(1, 3))
    order = [int(n) for n in rng.permutation(rank)]
    # What is added is a view, or computed where it is to lie: two views behind each other along another axis.
    shapes = [sizes, [*sizes[:other], 2, *sizes[other + 1 :]]][: int(rng.integers(1, 3))]
    both = [*sizes[:other], sum(shape[other] for shape in shapes), *sizes[other + 1 :]]
    g = df.GraphBuilder()
    past = g.input("past", type_, [*both[:axis], "length", *both[axis + 1 :]])
    given = [g.input(f"x{n}", type_, [shape[i] for i in order]) for n, shape in enumerate(shapes)]
    added = [df.ops.transpose(x, perm=[order.index(i) for i in range(rank)]) for x in given]
    new = added[0] if len(added) == 1 else df.ops.concat(*added, axis=other)
    after = df.ops.concat(past, new, axis=axis)
    g.output("present", after)
    read = df.ops.transpose(after, perm=order)
    g.output("y", df.ops.concat(read, read, axis=0))
    g.output("view", read)
    session = df.Session(df.Model(g.build()), devices, state={"present": "past"}, **how)
    expected = np.zeros([0 if i == axis else size for i, size in enumerate(both)], type_.numpy)
    for _ in range(9):
        arrays = [rng.integers(0, 100, shape).astype(type_.numpy) for shape in shapes]
        expected = np.concatenate([expected, np.concatenate(arrays, other)], axis)
        given = {f"x{n}": array.transpose(order) for n, array in enumerate(arrays)}
        found, wanted = session.run(given, ["y", "view"] if views else ["y"]), expected.transpose(order)
        np.testing.assert_array_equal(found["y"], np.concatenate([wanted, wanted]))
        if views:  # a result that is no other than the state is copied from it
            np.testing.assert_array_equal(found["view"], wanted)
    np.testing.assert_array_equal(session.state["past"], expected)
    return {arena.kind for arena in session.plans[-1].arenas}
