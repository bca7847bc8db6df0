"""What the end-to-end tests share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repeatable():
    """Bytes of every result below a folder that must repeat: not the costs, not manifests, not the kept cells."""

    def read(folder: Path) -> dict[str, bytes]:
        root = folder / "results"
        kept = (p for p in sorted(root.rglob("*")) if p.is_file() and ".runs" not in p.parts)
        return {str(p.relative_to(root)): p.read_bytes() for p in kept if p.name not in ("costs.csv", "manifest.json")}

    return read
