"""python -m benchmarks embeddings [PART ...]: fits to features of a frozen network beside logistic regression.

Parts: `map` (a memory map of 200 000 x 384 features, 100 classes, in a process of its own), `card` (1 000 000 x 768
features, 1000 classes, on a GPU), `small` (a try of both), `directions` (covariances of low rank, as they are compared
where classes have too many matrices). Writes results/embeddings.*.

Features are generated: their covariance has a spectrum that falls as 1 / j. In "own covariances" every class has a
mean, a covariance with other variances along the same axes, and eight axes of its own. In "linear teacher" the labels
are drawn from a linear softmax of the features, the model of logistic regression.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import mixtura
from mixtura import MixtureClassifier

RESULTS = Path(__file__).parent / "results"
GUIDE = Path(__file__).parents[1] / "docs" / "embeddings.md"
BEGIN, END = "<!-- python -m benchmarks embeddings -->", "<!-- end -->"
SIZES = {"map": (200_000, 384, 100), "card": (1_000_000, 768, 1000), "small": (30_000, 128, 20)}
N_TEST = 20_000
KINDS = ("own covariances", "linear teacher")
STEPS = {"logistic regression": 40, "logistic regression, 400 steps": 400}  # of L-BFGS
PENALTY = 1e-5  # of the squares of the weights of scaled features
OWN_AXES, SPREAD, APART = 8, 0.05, 0.2  # of a class: axes, scatter of log scales, distance of means
SHARPNESS = 3.0  # of the teacher


class Features:
    """A generator of features and labels, drawn in parts."""

    def __init__(self, kind: str, size: int, n_classes: int, device: str):
        self.kind, self.size, self.n_classes, self.device = kind, size, n_classes, device
        self.random = torch.Generator(device).manual_seed(0)
        self.scales = torch.arange(1, size + 1, device=device).float().rsqrt()
        self.axes = torch.linalg.qr(self._normal(size, size))[0]
        self.means = APART * self._normal(n_classes, size) * self.scales
        self.own_scales = self.scales * (SPREAD * self._normal(n_classes, size)).exp()
        self.own = self._normal(n_classes, OWN_AXES, size) * self.scales / size**0.5
        self.teacher = SHARPNESS * self._normal(size, n_classes)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, device=self.device)

    def draw(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Rows (n, D) in float32, and their labels (n,)."""
        z = self._normal(n_rows, self.size)
        if self.kind == "linear teacher":
            z *= self.scales
            noise = -torch.empty(n_rows, self.n_classes, device=self.device).exponential_(generator=self.random).log()
            return z @ self.axes, (z @ self.teacher + noise).argmax(1)
        labels = torch.randint(self.n_classes, (n_rows,), generator=self.random, device=self.device)
        rows = self.means[labels] + self.own_scales[labels] * z
        factors = self._normal(n_rows, OWN_AXES, 1)
        for axis in range(OWN_AXES):
            rows += factors[:, axis] * self.own[labels, axis]
        return rows @ self.axes, labels

    def parts(self, n_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, n_rows, 2**15):
            yield self.draw(min(2**15, n_rows - start))


class Logistic:
    """Logistic regression of scaled features by L-BFGS on all rows, in plain torch."""

    def __init__(self, steps: int):
        self.steps = steps

    def fit(self, X: Tensor, y: Tensor) -> Logistic:
        self.mean, self.scale = X.float().mean(0), X.float().std(0)
        n_classes = int(y.max()) + 1
        rows = ((X.float() - self.mean) / self.scale).contiguous()
        self.weight = torch.zeros(n_classes, X.shape[1], device=X.device, requires_grad=True)
        self.bias = torch.zeros(n_classes, device=X.device, requires_grad=True)
        solver = torch.optim.LBFGS([self.weight, self.bias], max_iter=self.steps, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            solver.zero_grad()
            total = torch.zeros((), device=X.device)
            for part, labels in zip(rows.split(2**17), y.split(2**17), strict=True):
                value = functional.cross_entropy(part @ self.weight.T + self.bias, labels, reduction="sum") / len(rows)
                value.backward()
                total += value.detach()
            penalty = PENALTY * self.weight.square().sum()
            penalty.backward()
            return total + penalty.detach()

        solver.step(loss)
        return self

    @torch.no_grad()
    def predict_proba(self, X: Tensor) -> Tensor:
        return (((X.float() - self.mean) / self.scale) @ self.weight.T + self.bias).softmax(1)


def seconds_of(call: Callable[[], Any], device: str) -> tuple[Any, float, float]:
    """The result, seconds by the clock, and seconds of processor time."""
    if device == "cuda":
        torch.cuda.synchronize()
    began, processor = time.perf_counter(), time.process_time()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - began, time.process_time() - processor


def judged(model: Any, X: Any, y: Any, X_test: Any, y_test: Tensor, device: str) -> dict[str, float]:
    """Seconds of a fit and of the predictions of the test rows, error in per cent and log-loss."""
    _, seconds, processor = seconds_of(lambda: model.fit(X, y), device)
    answers, predicting, _ = seconds_of(lambda: model.predict_proba(X_test), device)
    probabilities = torch.as_tensor(answers).double().cpu()
    labels = y_test.cpu()
    own = probabilities.gather(1, labels.unsqueeze(1)).clamp_min(1e-300)
    wrong = (probabilities.argmax(1) != labels).double().mean()
    return {
        "seconds": seconds,
        "processor seconds": processor,
        "predicting": predicting,
        "error": 100 * float(wrong),
        "log-loss": float(-own.log().mean()),
    }


def what_was_chosen(model: MixtureClassifier) -> str:
    assert model.search_ is not None
    return " + ".join(str(member.what["covariance_type"]) for member in model.search_.members)


def of_memory_map(path: str, rival: str) -> dict[str, Any]:
    """A fit to a memory map, and the largest memory of this process, in MB, before it and in all."""
    rows = np.load(f"{path}/rows.npy", mmap_mode="r")
    labels = np.load(f"{path}/labels.npy")
    test, y_test = np.load(f"{path}/test.npy"), torch.from_numpy(np.load(f"{path}/test_labels.npy"))
    before = peak_memory()
    if rival == "mixture":
        model: Any = MixtureClassifier(random_state=0)
        result = judged(model, rows, labels, test, y_test, "cpu") | {"chosen": what_was_chosen(model)}
    else:
        result = judged(
            Logistic(STEPS[rival]),
            torch.from_numpy(np.array(rows)),
            torch.from_numpy(labels),
            torch.from_numpy(test),
            y_test,
            "cpu",
        )
    return result | {"memory before": before, "memory": peak_memory()}


def peak_memory() -> float:
    """The largest memory of this process so far without pages of files, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    anonymous = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))
    return max(anonymous, Watch.largest)


class Watch:
    """The largest anonymous memory of this process, seen every 20 ms."""

    largest = 0.0


def watched(queue: Any, *arguments: Any) -> None:
    import threading

    def watch() -> None:
        while True:
            Watch.largest = peak_memory()
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    warnings.simplefilter("ignore")
    queue.put(of_memory_map(*arguments))


def map_part(size: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    n_rows, n_features, n_classes = SIZES[size]
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as path:
            features = Features(kind, n_features, n_classes, "cpu")
            rows = np.lib.format.open_memmap(f"{path}/rows.npy", "w+", np.float32, (n_rows, n_features))
            labels, start = np.empty(n_rows, np.int64), 0
            for part, own in features.parts(n_rows):
                rows[start : start + len(part)], labels[start : start + len(part)] = part.numpy(), own.numpy()
                start += len(part)
            rows.flush()
            test, test_labels = features.draw(N_TEST)
            for name, values in (("labels", labels), ("test", test.numpy()), ("test_labels", test_labels.numpy())):
                np.save(f"{path}/{name}.npy", values)
            del rows, features
            for rival in ("mixture", *STEPS):
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                process = context.Process(target=watched, args=(queue, path, rival))
                process.start()
                results.setdefault(kind, {})[rival] = queue.get()
                process.join()
                print(kind, rival, results[kind][rival], flush=True)
    return results


def directions_part() -> dict[str, Any]:
    """Fits as if the matrices of all classes were too many, with 1500 rows to hold out, beside tied and full ones."""
    from benchmarks.doubt import embeddings, some_samples
    from mixtura.selection import automatic, comparison

    results: dict[str, Any] = {}
    sets = {"docstrings": embeddings(), "Fashion, pixels": some_samples("fashion_mnist", 6000, 2000)}
    features = Features(KINDS[0], 384, 10, "cpu")
    sets[KINDS[0]] = tuple(part.numpy() for n_rows in (6000, 2000) for part in features.draw(n_rows))
    before = automatic.MOST_SCATTERED, automatic.SELECTION_SAMPLES
    for name, (X, y, X_test, y_test) in sets.items():
        X, X_test = X.astype(np.float32), X_test.astype(np.float32)
        classes, y = np.unique(y, return_inverse=True)
        labels = torch.from_numpy(np.searchsorted(classes, y_test))
        for rival in ("tied", "too many matrices", "full allowed"):
            if rival == "too many matrices":
                automatic.MOST_SCATTERED, automatic.SELECTION_SAMPLES = X.shape[1] ** 2, 1500
                comparison.SELECTION_SAMPLES = 1500
            options = {"covariance_type": "tied"} if rival == "tied" else {}
            model = MixtureClassifier(random_state=0, **options)
            result = judged(model, X, y, X_test, labels, "cpu") | {"chosen": what_was_chosen(model)}
            results.setdefault(f"{name}, {X.shape[0]:,} x {X.shape[1]}, {len(classes)} classes", {})[rival] = result
            automatic.MOST_SCATTERED, automatic.SELECTION_SAMPLES = before
            comparison.SELECTION_SAMPLES = before[1]
            print(name, rival, result, flush=True)
    return results


def card_part(size: str, device: str, keep: Callable[[dict[str, Any]], None]) -> None:
    """Fits to rows on the card in single and half precision, and from pinned memory; of the mixture the second of two.

    `keep` is called with the results so far after every fit.
    """
    results: dict[str, Any] = {}
    n_rows, n_features, n_classes = SIZES[size]
    for kind in KINDS:
        features = Features(kind, n_features, n_classes, device)
        rows, labels = torch.empty(n_rows, n_features, device=device), torch.empty(n_rows, dtype=torch.int64).to(device)
        start = 0
        for part, own in features.parts(n_rows):
            rows[start : start + len(part)], labels[start : start + len(part)] = part, own
            start += len(part)
        test, y_test = features.draw(N_TEST)
        del features
        of_kind: dict[str, Any] = results.setdefault(kind, {})
        for name in ("mixture", "mixture, half precision", "mixture, pinned memory", *STEPS):
            X, y, X_test = rows, labels, test
            options: dict[str, Any] = {}
            if "half" in name:
                X, X_test = rows.half(), test.half()
            elif "pinned" in name and device == "cuda":
                X, y, options = rows.cpu().pin_memory(), labels.cpu(), {"device": device}
            for _ in range(1 if name in STEPS else 2):  # plain torch is warm by then
                model: Any = Logistic(STEPS[name]) if name in STEPS else MixtureClassifier(random_state=0, **options)
                of_kind[name] = judged(model, X, y, X_test, y_test, device)
                if isinstance(model, MixtureClassifier):
                    of_kind[name]["chosen"] = what_was_chosen(model)
                del model
            print(kind, name, of_kind[name], flush=True)
            keep(results)
            del X, X_test


def as_markdown(results: dict[str, Any]) -> str:
    description = (__doc__ or "").split("\n\n", 2)[2].strip()
    lines = ["# Features of a frozen network", "", "Written by `python -m benchmarks embeddings`.", description]
    lines += [f"Logistic regression: 40 or 400 steps of L-BFGS on all rows, penalty {PENALTY:g}, in plain torch."]
    titles = {
        "map": "A memory map, {n:,} x {d}, {c} classes, on a CPU",
        "card": "Rows on a GPU, {n:,} x {d}, {c} classes",
    }
    for part, title in titles.items():
        if part not in results:
            continue
        n, d, c = SIZES[part]
        on_host = part == "map"
        extra = "memory, MB" if on_host else f"predictions of {N_TEST:,} rows, s"
        timed = "processor s" if on_host else "s"
        lines += ["", "## " + title.format(n=n, d=d, c=c), "", results[part]["machine"], ""]
        lines += [f"| features | model | covariances | {timed} | {extra} | error, % | log-loss |", "|---" * 7 + "|"]
        for kind in KINDS:
            for rival, values in results[part].get(kind, {}).items():
                seconds = values["processor seconds" if on_host else "seconds"]
                other = f"{values['memory']:.0f}" if on_host else f"{values['predicting']:.3f}"
                lines.append(
                    f"| {kind} | {rival} | {values.get('chosen', '')} | {seconds:.1f} | {other} "
                    f"| {values['error']:.2f} | {values['log-loss']:.4f} |"
                )
    if "directions" in results:
        lines += ["", "## A few directions of every class", "", results["directions"]["machine"] + ".", ""]
        lines += [
            "Tied covariances, the choice where the matrices of all classes would be too many, and where they are not."
        ]
        lines += ["", "| features | choice | covariances | processor s | error, % | log-loss |", "|---" * 6 + "|"]
        for name, rivals in results["directions"].items():
            for rival, values in rivals.items() if name != "machine" else ():
                numbers = f"{values['processor seconds']:.1f} | {values['error']:.1f} | {values['log-loss']:.3f}"
                lines.append(f"| {name} | {rival} | {values['chosen']} | {numbers} |")
    return "\n".join(lines) + "\n"


def as_lines(results: dict[str, Any]) -> str:
    """The table of the guide: seconds and errors of all measured parts."""
    lines = ["| features | model | seconds | error, % | log-loss |", "|---|---|---|---|---|"]
    for part, where in (("map", "memory map, one thread"), ("card", "GPU")):
        for kind in KINDS if part in results else ():
            for rival, values in results[part].get(kind, {}).items():
                n, d, c = SIZES[part]
                seconds = values["processor seconds" if part == "map" else "seconds"]
                lines.append(
                    f"| {kind}, {n:,} x {d}, {c} classes, {where} | {rival} | {seconds:.1f} | {values['error']:.1f} "
                    f"| {values['log-loss']:.3f} |"
                )
    return "\n".join(lines)


def into_guide(text: str, results: dict[str, Any]) -> str:
    """The text of the guide with these figures."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{as_lines(results)}\n\n{END}{rest.split(END)[1]}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks embeddings", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=("map", "card", "small", "directions"), default=["map"])
    parser.add_argument("--out", type=Path, default=RESULTS / "embeddings.json")
    parser.add_argument("--code", help="the commit, where git does not know it")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = options.out if options.out.exists() else RESULTS / "embeddings.json"
    results = json.loads(known.read_text("utf-8")) if known.exists() else {}
    code = options.code
    if code is None:
        from benchmarks.defaults import version

        code = version()
    for part in options.parts:
        if part == "small":
            map_part("small")
            card_part("small", device, lambda measured: None)
            continue
        machine = torch.cuda.get_device_name() if part == "card" and device == "cuda" else platform.machine()
        machine += "" if part == "card" else f", {torch.get_num_threads()} threads"
        heading = {"machine": f"{machine}, torch {torch.__version__}, mixtura {mixtura.__version__}, code {code}"}

        def keep(measured: dict[str, Any], part: str = part, heading: dict[str, str] = heading) -> None:
            results[part] = heading | measured
            write(results, options.out)

        if part != "card":
            keep(map_part(part) if part == "map" else directions_part())
        else:
            card_part(part, device, keep)


def write(results: dict[str, Any], out: Path) -> None:
    out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    out.with_suffix(".md").write_text(as_markdown(results), "utf-8")
    if out.parent == RESULTS:
        GUIDE.write_text(into_guide(GUIDE.read_text("utf-8"), results), "utf-8")
