"""The memory of packed matrices: aligned, zero, one behind the other, never shared."""

from __future__ import annotations

from mainspring.plugins.executors.native_weights import LARGE_PAGE, PIECE, WeightRoom


def test_parts_lie_behind_each_other_and_never_overlap() -> None:
    room = WeightRoom()
    parts = [room.take(size) for size in (1, 64, 65, 0, 4096)]
    begins = [part.ctypes.data for part in parts]
    assert [part.nbytes for part in parts] == [1, 64, 65, 0, 4096]
    assert begins[0] % LARGE_PAGE == 0
    assert [begin - begins[0] for begin in begins] == [0, 64, 128, 256, 256]
    for number, part in enumerate(parts):
        assert not part.any()
        part[:] = number + 1
    assert [set(part.tolist()) for part in parts] == [{1}, {2}, {3}, set(), {5}]


def test_what_is_larger_than_a_piece_has_its_own() -> None:
    room = WeightRoom()
    small, large, next_one = room.take(100), room.take(PIECE + 1), room.take(100)
    assert large.nbytes == PIECE + 1
    assert large.ctypes.data % 64 == 0
    assert small.ctypes.data != next_one.ctypes.data
