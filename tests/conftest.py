import importlib.util
import sys
from pathlib import Path

import pytest


def load_module(name):
    """A file of this folder as a module, which pytest's import mode does not offer by name."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def odd_images():
    """File name -> (bytes, expectation): one of every odd good image file and of every broken one."""
    return load_module("odd_images").make()


@pytest.fixture(scope="session")
def abacus_models():
    """Fetches the models of the suite abacus-cpu, once; where that cannot be, tests that need them fail and say so."""
    from tallymill.errors import TallymillError
    from tallymill.exporters import hub

    try:
        return hub.get("abacus-cpu")
    except TallymillError as exc:
        told = f"the models of abacus-cpu, which this test needs, cannot be fetched: {exc.message}\n  {exc.hint}"
    pytest.fail(told, pytrace=False)


@pytest.fixture(scope="session")
def bundle_example():
    """The module that writes a bundle by hand."""
    return load_module("bundle_example")


@pytest.fixture(scope="session")
def co_detr_graph():
    """The module that writes the graph of a Co-DETR by hand."""
    return load_module("co_detr_graph")


@pytest.fixture(scope="session")
def report_example():
    """The module that makes an analysis, a card and a page by hand."""
    return load_module("report_example")


@pytest.fixture(scope="session")
def physcount_example():
    """The module that makes a PhysCount dataset by hand."""
    return load_module("physcount_example")
