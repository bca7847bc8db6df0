"""Torch's number of threads is set for a while only."""

import pytest
import torch

from features.threads import torch_threads


def test_number_comes_back_also_after_an_error():
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError), torch_threads(before + 1):
        raise RuntimeError
    assert torch.get_num_threads() == before
