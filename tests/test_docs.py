"""The generated pages are what the generator writes today; test_character.py has the page that is measured."""

import pytest

from pages import DOCS, differences, generate


@pytest.mark.parametrize("name", sorted(generate.PAGES.keys() - {"encodings.md"}))
def test_generated_pages_are_in_step(name):
    assert differences((DOCS / name).read_text(), generate.PAGES[name]()) == [], "run: python docs/generate.py"


def test_a_rounding_is_no_difference_and_anything_else_is():
    page = "# Page 10\n## Character\n| rope | 1,000 | yes 0.15 |\n## rope\n2021"
    for old, new, line in (
        ("1,000", "1,010", None),
        ("0.15", "0.16", None),
        ("1,000", "1,100", "| rope | 1,100 | yes 0.15 |"),
        ("yes", "no", "| rope | 1,000 | no 0.15 |"),
        ("2021", "2022", "2022"),
        ("Page 10", "Page 11", "# Page 11"),
        ("\n2021", "", "another number of lines"),
    ):
        assert differences(page, page.replace(old, new)) == ([line] if line else [])
