"""Ties the distribution to the libtms of its version, which has the package and the publisher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.metadata.core import load_toml
from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"libtms=={metadata['version']}"]
        project = load_toml(str(Path(self.root).parent / "pyproject.toml"))["project"]
        metadata.update({field: project[field] for field in ("license", "authors", "urls")})
