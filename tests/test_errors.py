"""What the errors themselves do."""

from importlib import import_module

import pytest

from tallymill.errors import MissingExtraError


def test_a_package_that_is_not_installed_is_named_with_its_extra():
    with (
        pytest.raises(MissingExtraError, match="the package 'there' is not installed") as caught,
        MissingExtraError.unless("other", "there", extra="gpu"),
    ):
        import_module("there.is_none")
    assert caught.value.hint == "pip install 'tallymill[gpu]'"


def test_what_an_installed_package_lacks_is_not_explained_away():
    with pytest.raises(ModuleNotFoundError, match="there"), MissingExtraError.unless("other", extra="gpu"):
        import_module("there.is_none")
