import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def odd_images():
    """File name -> (bytes, expectation): one of every odd good image file and of every broken one."""
    spec = importlib.util.spec_from_file_location("odd_images", Path(__file__).with_name("odd_images.py"))
    module = sys.modules["odd_images"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make()
