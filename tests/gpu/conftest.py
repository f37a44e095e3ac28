"""Triton is interpreted on the CPU where there is no card; it reads the switch when it is first imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
