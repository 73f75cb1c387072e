"""Which nodes hold images, after any changes."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.images.imagelocality import ImageLocality

NAMES = st.sampled_from(["a", "b", "c"])
HELD = st.dictionaries(NAMES, st.integers(0, 9))
CHANGES = st.lists(st.tuples(st.sampled_from(["n", "m", "o"]), st.none() | HELD))


@given(CHANGES, st.lists(NAMES))
def test_what_was_put_last_counts(changes: list[tuple[str, dict[str, int] | None]], requested: list[str]) -> None:
    held, want = ImageLocality(), dict[str, dict[str, int]]()
    for node, images in changes:
        if images is None:
            held.drop(node)
            want.pop(node, None)
        else:
            held.put(node, images)
            want[node] = images
    sums = {node: [images[name] for name in set(requested) if name in images] for node, images in want.items()}
    assert held.bytes_present(requested) == {node: sum(sizes) for node, sizes in sums.items() if sizes}
    assert ImageLocality(want).bytes_present(requested) == held.bytes_present(requested)
