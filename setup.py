"""Builds ``tallymill.kernels._native`` with CMake; everything else about the package is in pyproject.toml.

Never imports torch and never looks for a GPU: a wheel built on a laptop is the wheel that runs on a server.
"""

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
LINKED_FOLDERS = ("engine", "kernels", "exporters", "runners", "bench")


def require_links() -> None:
    """Stop when an archive tool turned the links under src/tallymill into text files: the install would be hollow."""
    for name in LINKED_FOLDERS:
        link = ROOT / "src" / "tallymill" / name
        if not link.is_dir():
            sys.exit(
                f"src/tallymill/{name} is not a folder. This copy of the source was made without symbolic links; "
                f"clone it with git, or run: ln -sfn ../../{name} src/tallymill/{name}"
            )


class CMakeBuild(build_ext):
    """Configure and build the native module into the place where setuptools expects it."""

    def build_extension(self, ext: Extension) -> None:
        """Run CMake for the one extension there is."""
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        target.mkdir(parents=True, exist_ok=True)
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            "-S",
            str(ROOT.resolve()),
            "-B",
            str(build),
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DTALLYMILL_OUTPUT={target}",
        ]
        # An isolated build puts cmake and nanobind in a folder that is gone the next time, and its cache is stale.
        if not self.inplace:
            configure.append("--fresh")
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)


require_links()
setup(
    package_dir={"": "src"},
    packages=find_namespace_packages("src", include=["tallymill*"]),
    package_data={"": ["*.json", "*.toml", "*.txt", "*.csv", "*.html", "*.pyi", "py.typed"]},
    ext_modules=[Extension("tallymill.kernels._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
