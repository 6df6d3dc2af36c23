import importlib.metadata
import sys

import pytest

from posenc.cli.requirements import Requirement, is_at_least, read_requirements, whole


def test_all_of_this_packages_requirements_can_be_read():
    lines = importlib.metadata.requires("posenc")
    assert len(read_requirements(lines)) == len(lines)


def test_package_version_and_extra_are_told_apart():
    plain, optional = read_requirements(["rich", "mkdocs-material>=9.5; extra == 'docs'"])
    assert plain == Requirement("rich", "", "", "", "rich")
    assert optional == Requirement("mkdocs-material", "9.5", "", "docs", "mkdocs-material>=9.5")


@pytest.mark.parametrize("spelling", ["transformers<5.24,>=5.23", "transformers >= 5.23, < 5.24"])
def test_bounds_stand_in_any_order(spelling):
    (found,) = read_requirements([f"{spelling}; extra == 'test'"])
    assert found == Requirement("transformers", "5.23", "5.24", "test", spelling)
    assert found.bounds == ">=5.23,<5.24"
    (found,) = read_requirements(["torch<3"])
    assert (found.minimum, found.below, found.bounds) == ("", "3", "<3")


@pytest.mark.parametrize("line", ["torch~=2.3", "torch>=2,!=2.1", "torch>=2,<3,<4", "torch; python_version < '3.12'"])
def test_what_it_cannot_read_it_refuses(line):
    with pytest.raises(ValueError, match="cannot read the requirement"):
        read_requirements([line])


@pytest.mark.parametrize(
    ("version", "minimum", "enough"),
    [
        ("2.13.0+cpu", "2.13", True),
        ("2.9", "2.13", False),
        ("2.13", "2.13.0", True),
        ("2.13.0rc1", "2.13", True),
        ("10.0", "9.5", True),
        ("3.1", "", True),
    ],
)
def test_versions_compare_by_number(version, minimum, enough):
    assert is_at_least(version, minimum) is enough


def test_an_extra_that_names_another_needs_what_that_one_needs():
    lines = ["numpy", "torch>=2.6; extra == 'torch'", "posenc[torch]; extra == 'study'", "jinja2; extra == 'study'"]
    lines += ["posenc[study,torch]; extra == 'ray'", "ray[tune]; extra == 'ray'"]
    found = whole(read_requirements(lines))
    assert [(r.package, r.extra) for r in found] == [
        ("numpy", ""),
        *(("torch", "torch"), ("torch", "study"), ("jinja2", "study")),
        *(("torch", "ray"), ("jinja2", "ray"), ("ray", "ray")),
    ]


def test_what_another_system_needs_is_not_asked_for() -> None:
    line = "triton>=3.9; (sys_platform == '{}') and extra == 'test'"
    assert [r.package for r in read_requirements([line.format(sys.platform)])] == ["triton"]
    assert read_requirements([line.format("another")]) == []
