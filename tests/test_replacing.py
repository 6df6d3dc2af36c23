"""Files are there whole, or as they were before."""

import pytest

from posenc.replacing import replaced


def test_what_fails_half_way_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "page.html"
    file.write_text("old")

    def stop() -> None:
        with replaced(file) as aside:
            aside.write_text("half of the n")
            assert file.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert file.read_text() == "old"


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "real", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    with replaced(link) as aside:
        aside.write_text("new")
    assert (link.is_symlink(), file.read_text()) == (True, "new")
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["far", "link", "real"]
