"""The README says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from serving.config_reference import reference

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_configuration_reference_is_the_one_of_the_code() -> None:
    assert reference() in README, "run `forecache config` and put its table into the README"


def test_every_config_file_is_listed_and_there() -> None:
    listed = set(re.findall(r"\]\((configs/[^)]+)\)", README))
    assert listed == {str(path.relative_to(ROOT)) for path in (ROOT / "configs").glob("*.yaml")}


def test_the_two_commands_stand_there_as_single_lines() -> None:
    assert "\npip install -e '.[test]' && serve run configs/laptop.yaml\n" in README
    assert "\npip install -e '.[test]' && pytest\n" in README
