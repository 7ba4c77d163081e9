"""Convolutions: the workspaces that cuDNN takes."""

from __future__ import annotations

from whichgpu.workspaces.records import Rule

RULES: dict[str, Rule] = {}
