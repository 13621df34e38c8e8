"""Writing of files: whole or not at all, with the usual permissions, and only in place of regular files."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import mixtura
from mixtura import GaussianMixture
from mixtura.files import models
from mixtura.files.checkpoints import METADATA as CHECKPOINT
from mixtura.files.models import read_tensors, write_tensors

posix = pytest.mark.skipif(os.name != "posix", reason="links, modes and signals of POSIX")
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0, dtype=torch.int64)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def write(path, tensors=TENSORS, header=None):
    write_tensors(path, tensors, "kind", {"n": 1} if header is None else header)


def assert_written(path):
    header, tensors = read_tensors(path, "kind")
    assert header == {"n": 1}
    assert {name: part.tolist() for name, part in tensors.items()} == {"a": [[0, 1, 2], [3, 4, 5]], "b": []}
    assert not list(path.parent.glob(".mixtura-*"))


def test_what_was_written_is_read(path):
    write(path)
    assert_written(path)
    with safe_open(path, framework="np") as file:  # an ordinary safetensors file
        assert sorted(file.keys()) == ["a", "b"]


def test_parts_of_larger_tensors_and_parameters_are_written(path):
    whole = torch.arange(6.0).reshape(3, 2).T
    write(path, {"a": whole, "b": torch.nn.Parameter(whole[0])})
    _, tensors = read_tensors(path, "kind")
    assert tensors["a"].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert tensors["b"].tolist() == [0, 2, 4]


def test_what_was_read_does_not_follow_the_file(path):
    write(path)
    _, tensors = read_tensors(path, "kind")
    with path.open("r+b") as file:
        file.seek(-24, os.SEEK_END)
        file.write(b"\xff" * 24)
    assert tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_umask_decides_about_permissions(path, mask):
    before = os.umask(mask)
    try:
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@posix
@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed(path, tmp_path, exists):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    if exists:
        target.write_bytes(b"old")
    path.symlink_to(target)
    write(path)
    assert path.is_symlink()
    assert not target.is_symlink()
    assert_written(target)


@posix
def test_other_things_than_files_are_refused(path, tmp_path):
    os.mkfifo(path)
    for place in (path, tmp_path, "/dev/null"):
        with pytest.raises(ValueError, match="is not a regular file and cannot be replaced; choose another file"):
            write(place)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_missing_folder_is_named(path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*file' to save the model in; create it first"):
        write(path / "below")


def test_the_content_is_on_the_disk_before_it_gets_its_name(path, monkeypatch):
    calls, replace, sync = [], models.Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("sync") or sync(file))
    monkeypatch.setattr(models.Path, "replace", lambda *names: calls.append("replace") or replace(*names))
    write(path)
    assert calls[:2] == ["sync", "replace"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    write(path)

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, {"a": torch.ones(9)})
    assert_written(path)


@pytest.mark.parametrize("header", [[[]] * 100_001, "x" * 4_000_001], ids=["brackets", "text"])
def test_a_header_may_not_be_long(path, header):
    with pytest.raises(
        ValueError, match=r"cannot be written: its header has \d+ characters and \d+ brackets, more than 4000000"
    ):
        write(path, {}, {"header": header})
    assert not path.exists()


def test_checkpoints_are_written_so_too(tmp_path, monkeypatch):
    from mixtura import HybridMixtureClassifier
    from mixtura.datasets import make_ripley

    calls, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(file) or sync(file))
    settings = {"tradeoff": 0.5, "n_epochs": 2, "validation_fraction": None, "random_state": 0}
    HybridMixtureClassifier(**settings, checkpoint=tmp_path / "fit").fit(*make_ripley(125, random_state=0))
    assert list(read_tensors(tmp_path / "fit", CHECKPOINT)[0]["loops"]) == ["0", "1"]  # EM, and the epochs
    assert len(calls) >= 2
    assert [file.name for file in tmp_path.iterdir()] == ["fit"]


# ---- processes that are killed ------------------------------------------------------------------------------------

# Imports once; for every line that comes in a child saves repeatedly until it is killed.
PROGRAM = """
import os, sys, torch
torch.set_num_threads(1)
import mixtura
first, second = mixtura.load(sys.argv[1]), mixtura.load(sys.argv[2])
for _ in sys.stdin:
    child = os.fork()
    while child == 0:
        first.save(sys.argv[3])
        second.save(sys.argv[3])
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@posix
@pytest.mark.parametrize("n_kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_saves_lose_nothing(tmp_path, rng, n_kills):
    models = {}
    for n_components in (1, 2):
        model = GaussianMixture(n_components, prior="default", max_iter=0, random_state=0)
        models[n_components] = model.fit(rng.normal(size=(20, 300)))
        models[n_components].save(tmp_path / str(n_components))
    target = tmp_path / "target"
    models[1].save(target)
    arguments = [str(tmp_path / name) for name in ("1", "2", "target")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(Path(mixtura.__file__).parent.parent)}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], env=environment, **pipes)
    for _ in range(n_kills):
        child.stdin.write("go\n")
        child.stdin.flush()
        number = int(child.stdout.readline())
        time.sleep(rng.uniform(0.0, 0.02))
        before, end = set(tmp_path.glob(".mixtura-*")), time.monotonic() + 0.2
        while set(tmp_path.glob(".mixtura-*")) <= before and time.monotonic() < end:
            pass  # most kills are to come while a file is unfinished
        os.kill(number, signal.SIGKILL)
        assert child.stdout.readline() == "gone\n"
        loaded = mixtura.load(target)
        np.testing.assert_array_equal(loaded.means_, models[loaded.n_components].means_)
    child.communicate()
    assert n_kills == 5 or list(tmp_path.glob(".mixtura-*")), "no kill came in the middle of a save"
