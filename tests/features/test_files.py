"""A file is whole or not there."""

import pytest

from features.files import replacing, write_text


def test_text_appears_under_its_name_with_nothing_beside_it(tmp_path):
    write_text(tmp_path / "new" / "a.txt", "one")
    write_text(tmp_path / "new" / "a.txt", "two")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.txt"]
    assert (tmp_path / "new" / "a.txt").read_text() == "two"


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.csv"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        assert temporary.suffix == ".csv"
        temporary.write_text("half")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    assert path.read_text() == "old"
