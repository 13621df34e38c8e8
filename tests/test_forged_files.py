"""Forged model files, with a valid checksum: each is refused in words, or is a model that predicts."""

import copy
import json
import math
import resource
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save as to_bytes

import mixtura
from mixtura import (
    AveragedMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    NonnegativeMixtureClassifier,
    RejectOption,
    SparseMixtureClassifier,
)
from mixtura.covariances import Diagonal, Spherical, Tied
from mixtura.datasets import make_ripley
from mixtura.estimators.table_classifier import TableClassifier, TableColumn
from mixtura.files.models import METADATA, _checksum, read_tensors, save
from mixtura.priors import Conjugate, Shrinkage

X, Y = make_ripley(40, random_state=0)
ROWS = np.abs(X)
LONGEST_SECONDS, LARGEST_BYTES = 1.0, 200e6  # seconds of computing, whatever else the machine does
QUICK = {"max_iter": 5, "random_state": 0}
WARPED = {"warp": "johnson", "prior": Conjugate(3.0, [1.0, 1.0])}
MODELS = [
    GaussianMixture(2, prior=Shrinkage(), init_params="random", **QUICK),
    MixtureClassifier("auto", prior="auto", **QUICK),
    MixtureClassifier({0: 2, 1: 1}, covariance_type=Tied(Diagonal(), per_class=True), **WARPED, **QUICK),
    MixtureClassifier(2, covariance_type=Spherical(), class_prior=np.array([0.5, 0.5]), **QUICK),
    MixtureClassifier(2, covariance_type="low_rank", rank=1, **QUICK),
    HybridMixtureClassifier(2, covariance_type="low_rank_precision", rank=1, n_epochs=2, **QUICK),
    SparseMixtureClassifier(2, **QUICK),
    SparseMixtureClassifier(2, kernel=None, **QUICK),
    NonnegativeMixtureClassifier(2, **QUICK),
    AveragedMixtureClassifier(MixtureClassifier(2, max_iter=5), 2, random_state=0),
    RejectOption(MixtureClassifier(1)),
    MarginalFeatureSelector(MixtureClassifier(1)),
    MixtureImputer(add_indicator=True),
]
FRAME = pd.DataFrame({"x": ROWS[:, 0], "y": ROWS[:, 1], "kind": np.array(["red", "blue", None])[np.arange(80) % 3]})
COLUMNS = [TableColumn("x"), TableColumn("kind", ("red", "blue"))]
OF_FRAMES = [MixtureClassifier(1), TableClassifier(MixtureClassifier(1), COLUMNS)]
STRANGE = [
    None, True, -1, 0, 1, 3, 2**31, 10**18, -(10**30), 0.5, 1e308, -1e-300, "", "x", "full", "mixture",
    "MixtureClassifier", "mixture_.means", [], {}, [[]], [0] * 5, {"float": "nan"}, {"tuple": []}, {"dict": []},
    {"tensor": "mixture_.means"},     {"array": [], "dtype": "<U9999999", "shape": [0]},
    {"scalar": 0.1, "dtype": "<f8"}, {"device": "cuda:7"},
    {"value": "joint", "fields": {}}, {"estimator": "GaussianMixture", "arguments": {}, "fitted": {}},
]  # fmt: skip
NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, -1e300, 1e-300, 5.0]


def places(code, actual):
    """Every list and object in a header, with the keys of its entries."""
    for key in code if isinstance(code, dict) else range(len(code)):
        actual.append((code, key))
        if isinstance(code[key], dict | list):
            places(code[key], actual)
    return actual


def change_header(model, tensors, rng):
    actual = places(model, [])
    part, key = actual[rng.integers(len(actual))]
    other, name = actual[rng.integers(len(actual))]
    action = rng.integers(4)
    if action == 0:
        part[key] = copy.deepcopy(STRANGE[rng.integers(len(STRANGE))])
    elif action == 1:
        del part[key]
    elif action == 2:
        part[key] = copy.deepcopy(other[name])
    elif isinstance(part, dict):
        part[str(name)] = part.pop(key)


def change_tensor(model, tensors, rng):
    name = sorted(tensors)[rng.integers(len(tensors))]
    part, action = tensors[name], rng.integers(7)
    if action <= 2 and part.numel():
        number = NUMBERS[rng.integers(len(NUMBERS))]
        whole = int(rng.integers(-3, 5)) if action else 2**62
        value = torch.from_numpy(np.array(number if part.is_floating_point() else whole)).to(part.dtype)
        part.view(-1)[rng.integers(part.numel())] = value
    elif action == 3:
        tensors[name] = part.to([torch.float32, torch.int64, torch.bool, torch.float16][rng.integers(4)])
    elif action == 4:
        shape = [(0,), (1,), (2, 2), (*part.shape, 1), (0, 2**40), tuple(reversed(part.shape))][rng.integers(6)]
        tensors[name] = torch.zeros(shape, dtype=part.dtype) + (part.flatten()[0] if part.numel() else 0)
    elif action == 5:
        tensors[str(rng.integers(9))] = tensors.pop(name)
    else:
        tensors[name] = tensors[sorted(tensors)[rng.integers(len(tensors))]].clone()


def forge(header, tensors, rng, path):
    """A file whose model or tensors are changed, one to three times."""
    header, tensors = copy.deepcopy(header), {name: part.clone() for name, part in tensors.items()}
    del header["checksum"]
    for _ in range(rng.integers(1, 4)):
        change = change_tensor if tensors and rng.random() < 0.5 else change_header
        change(header["model"], tensors, rng)
    tensors = {name: part.contiguous() for name, part in tensors.items()}
    header["checksum"] = _checksum(header, tensors)
    path.write_bytes(to_bytes(tensors, {METADATA: json.dumps(header)}))


def assert_predicts(model, rows):
    """Probabilities, or a word about an argument."""
    try:
        if hasattr(model, "transform"):
            model.transform(rows)
            return
        actual = model.predict_proba(rows)
        model.predict(rows)
    except ValueError:
        return
    assert actual.ndim == 2
    np.testing.assert_allclose(actual.sum(1), 1.0, atol=1e-6)


def look_at(path, rows=ROWS):
    """Whether the file is loaded; a refusal is one sentence that names it."""
    try:
        model = mixtura.load(path)
    except ValueError as error:
        message = str(error)
    else:
        assert_predicts(model, rows)
        return True
    assert str(path) in message
    assert "\n" not in message
    return False


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    path, actual = tmp_path_factory.mktemp("forged") / "model", []
    streamed = MixtureClassifier(1).partial_fit(ROWS, Y, classes=[0, 1]).calibrate_outliers(ROWS, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [model.fit(ROWS, Y) for model in MODELS] + [streamed, *(model.fit(FRAME, Y) for model in OF_FRAMES)]
    for model in models:
        model.save(path)
        actual.append((*read_tensors(path, METADATA), FRAME if model in OF_FRAMES else ROWS))
    return actual


@pytest.mark.parametrize("n_files", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_forged_files_are_refused_or_predict(originals, tmp_path, rng, n_files):
    path, n_loaded = tmp_path / "model", 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for i in range(n_files):
        header, tensors, rows = originals[i % len(originals)]
        forge(header, tensors, rng, path)
        start = time.process_time()
        n_loaded += look_at(path, rows)
        assert time.process_time() - start < LONGEST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < LARGEST_BYTES
    assert 0 < n_loaded < n_files / 2


def test_an_argument_that_predictions_need_is_checked(tmp_path):
    model = RejectOption(MixtureClassifier(1)).fit(ROWS, Y).set_params(estimator=[0, 0])
    with pytest.raises(ValueError, match="estimator is a list"):
        save(model, tmp_path / "model")  # checks what `load` checks


@pytest.mark.parametrize("n_files", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_files_with_changed_bytes_are_refused(originals, tmp_path, rng, n_files):
    path = tmp_path / "model"
    header, tensors, _ = originals[1]
    content = to_bytes(tensors, {METADATA: json.dumps(header)})
    path.write_bytes(content)
    assert look_at(path)
    for _ in range(n_files):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(len(changed) if rng.random() < 0.5 else 64)] = rng.integers(256)
        path.write_bytes(bytes(changed[: rng.integers(len(changed))] if rng.random() < 0.2 else changed))
        assert not look_at(path) or bytes(changed) == content


@pytest.mark.parametrize(
    "header",
    [
        "[" * 10**6,
        "[" * 90 + "]" * 90,
        '{"a":' * 5000,
        "[" + "[]," * 90_000 + "[]]",
        "[" + "[]," * 1_300_000 + "[]]",
        "[" + "1," * 1_900_000 + "1]",
        "1" * 10**6,
        "x" * 10**7,
    ],
    ids=["unclosed", "nested", "objects", "wide", "wider", "numbers", "digits", "long"],
)
def test_headers_that_ask_for_memory_are_refused(tmp_path, header):
    path = tmp_path / "model"
    path.write_bytes(to_bytes({"a": torch.zeros(1)}, {METADATA: header}))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.process_time()
    assert not look_at(path)
    assert time.process_time() - start < LONGEST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < LARGEST_BYTES


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}',
        '{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
        '{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}',
    ],
    ids=["larger than the file", "overflow", "overlap"],
)
def test_sizes_are_compared_with_the_file_first(tmp_path, text):
    path = tmp_path / "model"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + b"\0" * 8)
    with pytest.raises(ValueError, match="is not a model file of mixtura, or it is damaged"):
        mixtura.load(path)
    path.write_bytes((2**62).to_bytes(8, "little") + text.encode())
    with pytest.raises(ValueError, match="its header cannot have 4611686018427387904 bytes"):
        mixtura.load(path)
