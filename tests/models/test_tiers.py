"""The sizes that a job's network comes in: their names and widths, and every way to say them wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from manyhands.errors import JobError
from manyhands.job import load_job
from manyhands.models import FAMILIES, ModelSection, sizes_of
from manyhands.models.families import tiers_of

ANY_WIDTH = ("lenet5", "cifar_cnn", "vgg16", "mobilenet_v2")


def tiers(sizes, name="vgg16"):
    return [(tier.name, tier.width, tier.drawn) for tier in tiers_of(ModelSection(name=name, sizes=sizes))]


@pytest.mark.parametrize(
    ("number", "names"),
    [
        (1, "full"),
        (2, "small full"),
        (3, "small medium full"),
        (4, "tiny small medium full"),
        (5, "tiny small medium large full"),
    ],
)
@pytest.mark.parametrize("family", ANY_WIDTH)
def test_a_number_gives_names_and_each_twice_the_width_of_the_one_before(number, names, family):
    expected = [(name, 0.5 ** (number - 1 - k), False) for k, name in enumerate(names.split())]
    assert tiers(number, family) == expected
    assert expected[-1][1] == 1.0


def test_a_table_names_widths():
    assert tiers({"pocket": 0.125, "desk-2": 0.5, "b_ig": 1}) == [
        ("pocket", 0.125, False),
        ("desk-2", 0.5, False),
        ("b_ig", 1.0, False),
    ]


def test_a_list_picks_from_the_familys_own_in_the_familys_order():
    assert tiers(["complex", "light"], "cifar_cnn") == [("light", 0.5, True), ("complex", 1.0, True)]
    assert tiers(["light"], "cifar_cnn") == [("light", 1.0, True)]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_without_sizes_a_family_comes_in_its_own(family):
    assert sizes_of(ModelSection(name=family.name)) == family.sizes


def test_a_network_by_import_path_has_one_size_or_those_that_the_job_names():
    assert sizes_of(ModelSection(name="torch.nn:Flatten")) == ("full",)
    assert sizes_of(ModelSection(name="torch.nn:Flatten", sizes=["b", "a"])) == ("b", "a")
    assert tiers(2, "torch.nn:Flatten") == [("small", 0.5, False), ("full", 1.0, False)]


JOB = """
[model]
name = "{name}"
sizes = {sizes}
[[fleet.device]]
kind = "laptop"
"""


def refused(tmp_path: Path, sizes: str, name: str = "vgg16") -> str:
    """What a user is told whose job has these sizes."""
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(name=name, sizes=sizes))
    tomllib.loads(path.read_text())  # what is wrong is not the TOML
    with pytest.raises(JobError) as error:
        tiers_of(load_job(path).model)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ("true", "must be a number (3), names"),
        ("2.0", "must be a number (3), names"),
        ('"small"', "must be a number (3), names"),
        ("0", "must be from 1 to 5; more sizes need names and widths, as a table"),
        ("-1", "must be from 1 to 5"),
        ("6", "must be from 1 to 5"),
        ("[]", "must name at least one size"),
        ("{}", "must name at least one size"),
        ("[1, 2]", "1 cannot be the name of a size"),
        ('["a b"]', "'a b' cannot be the name of a size: letters, digits, _ and -"),
        ('["a.b"]', "'a.b' cannot be the name of a size"),
        ('[""]', "'' cannot be the name of a size"),
        ('["auto"]', "'auto' cannot be the name of a size"),
        ("{ auto = 1.0 }", "'auto' cannot be the name of a size"),
        ("{ half = 0.5, full = 1.0 }", "'half' cannot be the name of a size: torch calls something else so"),
        ("{ training = 1.0 }", "'training' cannot be the name of a size: torch"),
        ('["full", "full"]', "every size needs a name of its own"),
        ("{ small = 0.0, full = 1.0 }", "every width must be above 0 and at most 1"),
        ("{ small = -0.5 }", "every width must be above 0 and at most 1"),
        ("{ small = 0.5, full = 1.5 }", "every width must be above 0 and at most 1"),
        ('{ small = "0.5" }', "every width must be above 0 and at most 1"),
        ("{ small = nan }", "every width must be above 0 and at most 1"),
        ("{ full = true }", "every width must be above 0 and at most 1"),
        ("{ full = 1.0, small = 0.5 }", "widths must ascend, the smallest size first"),
        ("{ a = 0.5, b = 0.5 }", "widths must ascend, the smallest size first"),
    ],
)
def test_what_can_be_no_sizes_is_refused_under_its_key(tmp_path, sizes, says):
    message = refused(tmp_path, sizes)
    assert message.startswith("model.sizes")
    assert says in message


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("cifar_cnn", '["light", "huge"]', 'model.sizes = "huge": cifar_cnn comes in light or complex'),
        ("vgg16", '["small"]', 'model.sizes = "small": vgg16 comes in full'),
        ("alexnet", "2", "model.sizes = 2: alexnet comes in small or full; others can be had of lenet5, "),
        ("squeezenet", "{ a = 0.5 }", "model.sizes = {'a': 0.5}: squeezenet comes in full; others can"),
        ("vgg61", "2", 'model.name = "vgg61": no such network'),
        ("torch.nn:Nothing", "2", 'model.name = "torch.nn:Nothing"'),
    ],
)
def test_what_a_network_does_not_come_in_is_refused(tmp_path, name, sizes, says):
    assert refused(tmp_path, sizes, name).startswith(says)


def test_the_families_that_can_be_narrowed_are_named(tmp_path):
    assert refused(tmp_path, "2", "alexnet").endswith("lenet5, cifar_cnn, vgg16, mobilenet_v2 or dqn")
