"""A part of an engine that has a tensor as soon as it is imported."""

from __future__ import annotations

import torch

table = torch.filled(5, 8)
