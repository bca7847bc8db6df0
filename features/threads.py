"""How many threads torch may use, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Torch on so many threads; the process's own number comes back afterwards.

    Sums depend on how many threads share them, so that what must repeat bit by bit runs on a stated number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
