"""Options and fixtures for all tests: the device, the precision, seeds, and where the published data lie."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is first imported: its kernels then run on the CPU

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {"float32": torch.float32, "float64": torch.float64}

try:
    from hypothesis import settings
except ImportError:
    pass  # tests that need it use pytest.importorskip
else:
    # Fixed examples, and no time limit on one: the first call of a torch function is slow.
    settings.register_profile("mixtura", deadline=None, derandomize=True, database=None)
    settings.load_profile("mixtura")


def pytest_addoption(parser):
    group = parser.getgroup("mixtura")
    group.addoption("--device", default="cpu", help="torch device of the tests: cpu (default), cuda, cuda:1, ...")
    group.addoption("--dtype", default="float64", choices=sorted(DTYPES), help="precision of the tests")


def pytest_configure(config):
    asked = config.getoption("--device")
    try:
        torch.zeros(1, device=asked)
    except (RuntimeError, AssertionError) as error:
        raise pytest.UsageError(f"--device {asked} cannot be used here: {str(error).splitlines()[0]}") from error
    # torch's own: the thread that computes gradients has no CUDA context before its first product.
    config.addinivalue_line("filterwarnings", "ignore:Attempting to run cuBLAS, but there was no current CUDA context")


def pytest_report_header(config):
    where, precision = config.getoption("--device"), config.getoption("--dtype")
    return f"torch {torch.__version__}, device {where}, {precision}, {torch.get_num_threads()} threads"


@pytest.fixture(scope="session")
def device(pytestconfig) -> torch.device:
    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def dtype(pytestconfig) -> torch.dtype:
    return DTYPES[pytestconfig.getoption("--dtype")]


@pytest.fixture(scope="session")
def tolerance(device, dtype) -> float:
    """How far a result may be from its twin: sums are float64 on the CPU, in the precision of the rows elsewhere."""
    return 1e-9 if device.type == "cpu" or dtype == torch.float64 else 1e-3


@pytest.fixture
def generator(device) -> torch.Generator:
    """A seeded generator on the device of the tests."""
    return torch.Generator(device).manual_seed(0)


@pytest.fixture
def one_thread():
    """For many small steps: waiting for a second thread would take longer than they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded numpy generator."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder of the published data sets; a test that asks for it is skipped where there is none."""
    home = Path(os.environ.get("MIXTURA_DATA", ROOT.parent / "shared" / "data"))
    if not home.is_dir():
        pytest.skip(f"no data sets in {home}: set MIXTURA_DATA to the folder that holds them")
    return home


def _settings() -> dict:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients enabled": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "float32 products": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "numpy error state": np.geterr(),
    }


def _restore(before: dict) -> None:
    torch.set_default_dtype(before["default dtype"])
    torch.set_default_device(before["default device"])
    torch.set_grad_enabled(before["gradients enabled"])
    torch.set_num_threads(before["threads"])
    torch.set_float32_matmul_precision(before["float32 products"])
    torch.use_deterministic_algorithms(before["deterministic algorithms"])
    np.seterr(**before["numpy error state"])


@pytest.fixture(autouse=True)
def fixed_seeds_and_settings():
    """Seeds the global generators, and fails a test after which a global setting differs.

    torch keeps its own defaults (float32 among them), as in a user's program: a tensor born without a dtype shows.
    """
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - scikit-learn draws from it where random_state is None
    before = _settings()
    yield
    after = _settings()
    if after != before:
        _restore(before)
        changed = [f"{name}: {before[name]} -> {after[name]}" for name in before if after[name] != before[name]]
        pytest.fail("global settings changed during the test: " + ", ".join(changed))


@pytest.fixture
def registries():
    """Registries of parts as they were, whatever a test registers."""
    import mixtura.estimators
    import mixtura.nn  # noqa: F401 - names load lazily: what a test imports first must stay registered
    from mixtura.covariances import COVARIANCES
    from mixtura.files.registry import CHECKS, CLASSES, NAMES
    from mixtura.objectives import OBJECTIVES
    from mixtura.priors import PRIORS
    from mixtura.solvers import SOLVERS

    tables = (COVARIANCES, OBJECTIVES, PRIORS, SOLVERS, CHECKS, CLASSES, NAMES)
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)
