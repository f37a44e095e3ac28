"""tallymill scores counting benchmarks at the scale of ten million images."""

__version__ = "0.1.0"
