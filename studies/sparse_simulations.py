"""Defaults of sparse learning compared on simulated sets and training rows: python -m studies sparse-simulations.

Held-out training rows of real sets are few; sets drawn from known laws have as many rows to judge by as wanted. For
every set and setting three starts of several components per class and one start of one component; rules that choose
among the four are compared afterwards, in pairs, on the same sets. The real sets whose law is not known are judged by
folds of their training rows (studies.sparse_settings). No test row is read. Writes results/sparse_simulations.json
as it goes, and .md from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import make_moons

from mixtura import SparseMixtureClassifier
from mixtura.datasets import make_ripley, make_waveform
from mixtura.estimators.sparse import ordinary
from mixtura.objectives import class_log_joint
from reproduce.options import Options
from reproduce.sparse_table import done, machines, one_thread
from reproduce.stamps import write_json
from studies.sparse_settings import folds, row

N_SETS = 30
N_JUDGING = 6000
Sets = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def ripley(seed: int) -> Sets:
    return *make_ripley(125, 2 * seed), *make_ripley(N_JUDGING // 2, 2 * seed + 1)


def waveform(seed: int) -> Sets:
    """As Rätsch's: one wave against the two others."""
    X, y = make_waveform(400 + N_JUDGING, random_state=seed)
    return X[:400], (y[:400] == 1).astype(int), X[400:], (y[400:] == 1).astype(int)


def moons(seed: int) -> Sets:
    """Two crescents, as in Banana, of which one in ten rows lies on the wrong side."""
    X, y = make_moons(400 + N_JUDGING, noise=0.32, random_state=seed)
    return X[:400], y[:400], X[400:], y[400:]


def gaussians(seed: int) -> Sets:
    """Two or three classes of one Gaussian each in two or three dimensions, 80 rows a class."""
    rng = np.random.default_rng(seed)
    n_classes, n_features, n_more = 2 + seed % 3 // 2, 2 + seed % 2, N_JUDGING // 3
    means, scales, parts = [], [], []
    for _ in range(n_classes):
        means.append(rng.normal(0, 1.5, n_features))
        scales.append(rng.uniform(0.4, 2, n_features))
        parts.append(means[-1] + scales[-1] * rng.normal(size=(80, n_features)))
    more = [m + s * rng.normal(size=(n_more, n_features)) for m, s in zip(means, scales, strict=True)]
    numbers = np.arange(n_classes)
    return np.concatenate(parts), numbers.repeat(80), np.concatenate(more), numbers.repeat(n_more)


SIMULATED: dict[str, Callable[[int], Sets]] = {
    "ripley": ripley, "moons": moons, "waveform": waveform, "gaussians": gaussians,
}  # fmt: skip
COMPONENTS = {"gaussians": 10}  # at the start; of all others three
WITH_WORKING_SETS = ("waveform", "german", "image")
# Real sets: training splits, folds of each.
FOLDED = {"titanic": (10, 3), "breast_cancer": (10, 3), "german": (5, 2), "image": (5, 2)}
COMPARED = [
    "30.0, 100.0, complete", "30.0, 30.0, exact", "None, None, complete", "30.0, None, complete",
    "30.0, 1000.0, complete", "30.0, 30.0, complete", "30.0, 300.0, complete", "30.0, 100.0, exact",
    "30.0, 10.0, exact", "30.0, 10.0, complete", "None, 100.0, complete", "100.0, 100.0, complete",
    "10.0, 100.0, complete",
]  # fmt: skip


class TwiceJudged(SparseMixtureClassifier):
    """Knows its evidence by either Hessian."""

    def _keep(self, result, problem, solver) -> None:
        super()._keep(result, problem, solver)
        state, evidence, _ = problem.settled(result.mixture)
        state = replace(state, mixture=ordinary(state.mixture))
        self.exact_log_evidence_ = replace(solver, exact=True).settled(state, evidence)[1]


def judged(model: TwiceJudged, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log-loss, plug-in and moderated, and error of other rows; weights; log evidence."""
    places = (np.arange(len(y)), np.searchsorted(model.classes_, y))
    plain, moderated = (model.predict_proba(X, moderated=way) for way in (False, True))
    record = {
        "loss": -np.log(plain[places].clip(1e-15)).mean(),
        "moderated": -np.log(moderated[places].clip(1e-15)).mean(),
        "error": 100 * np.mean(plain.argmax(1) != places[1]),
        "weights": model.n_weights_,
        "evidence": model.log_evidence_,
        "exact evidence": model.exact_log_evidence_,
    }
    return {key: round(float(value), 4) for key, value in record.items()}


def left_out(model: SparseMixtureClassifier, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log p(label) of every row as if it had not been there: draws of the weights, those it made likely count less."""
    fitted = model.model_
    rows, labels = torch.from_numpy(np.asarray(X, float)), torch.from_numpy(np.searchsorted(model.classes_, y))
    mixture = fitted.draws() if fitted.mixture.n_pairs else fitted.mixture
    columns = fitted.basis.evaluate(fitted.scaling(rows))[:, mixture.columns]  # (N, P)
    values = mixture.values.reshape(-1, fitted.mixture.n_pairs)
    joint = torch.einsum("sp,pk,np->skn", values, mixture.members, columns) + mixture.log_weights.unsqueeze(1)
    sizes = fitted.mixture.class_sizes
    scores = torch.stack([class_log_joint(one, sizes).log_softmax(0) for one in joint])  # (S, C, N)
    likelihoods = scores[:, labels, torch.arange(len(rows))]
    weights = (-likelihoods).softmax(0).clamp_max(len(values) ** -0.5)  # truncated importance (Ionides 2008)
    return ((weights.log() + likelihoods).logsumexp(0) - weights.sum(0).log()).numpy()


def settings_of(setting: str) -> dict:
    start, expected, hessian = setting.split(", ")
    start, expected = (None if text == "None" else float(text) for text in (start, expected))
    return {"start_variance": start, "expected_variance": expected, "hessian": hessian}


def four_fits(rows: Sets, n_components: int, seed: int, setting: str) -> dict:
    """Three starts of several components per class and one of one."""
    X, y, X_out, y_out = rows
    fits, losses = [], []
    for number, start in ((n_components, 0), (n_components, 1), (n_components, 2), (1, 0)):
        settings = {"n_init": 1, "evidence": {"component_trials": False, **settings_of(setting)}}
        working = X.shape[1] > 15 or "auto"
        model = TwiceJudged(number, working_set=working, random_state=3 * seed + start, **settings).fit(X, y)
        fits.append({**judged(model, X_out, y_out), "components": model.n_components_.tolist()})
        losses.append(left_out(model, X, y))
    for fit, loss in zip(fits, losses, strict=True):
        more = loss - losses[-1]
        fit["more than one"] = [round(float(more.sum()), 3), round(float(more.std() * len(more) ** 0.5), 3)]
    return {"several": fits[:3], "one": fits[3], "rows": len(X)}


def measure(setting: str, name: str, where: str) -> dict:
    """One record."""
    if name in SIMULATED:
        return four_fits(SIMULATED[name](int(where)), COMPONENTS.get(name, 3), int(where), setting)
    return four_fits(dict(folds(name, *FOLDED[name]))[where], 3, 0, setting)


def known_as(setting: str, name: str) -> str:
    """Where the runs of a setting are. A working set starts with few columns, whatever they may add up to."""
    start, _, rest = setting.partition(", ")
    return f"{'30.0' if name in WITH_WORKING_SETS else start}, {rest}, {name}"


def planned(settings: list[str], n_sets: int) -> Iterator[tuple[str, str, str]]:
    """Tasks: ten simulated sets of each law, the folds, then more simulated sets."""
    pairs = [(setting, name) for setting in settings for name in (*SIMULATED, *FOLDED)]
    pairs = [pair for pair in pairs if known_as(*pair) == ", ".join(pair)]
    for seed in range(n_sets):
        yield from ((*pair, str(seed)) for pair in pairs if pair[1] in SIMULATED)
        if seed == min(9, n_sets - 1):
            for setting, name in pairs:
                if name in FOLDED:
                    yield from ((setting, name, fold) for fold, _ in folds(name, *FOLDED[name]))


def best(run: dict) -> dict:
    return max(run["several"], key=lambda fit: fit["evidence"])


def by_evidence(run: dict, odds: float, bounded: bool = False) -> dict:
    """The start of most evidence; or one component per class, unless there is so much more evidence for more."""
    several, one = best(run), run["one"]
    simple = not bounded or one["weights"] <= several["weights"]
    return one if simple and several["evidence"] - one["evidence"] <= np.log(odds) else several


def by_priced_evidence(run: dict, odds: float, key: str = "evidence") -> dict:
    """The model of most evidence if every further component of a class needs these odds."""

    def worth(fit: dict) -> float:
        return fit[key] - np.log(odds) * (sum(fit["components"]) - len(fit["components"]))

    return max([run["one"], *run["several"]], key=worth)


def by_rows_left_out(run: dict, n_errors: float) -> dict:
    """One component per class, unless left-out rows are more likely with more, by so many standard errors."""
    more, error = best(run)["more than one"]
    return run["one"] if more <= n_errors * error else best(run)


RULES: dict[str, Callable[[dict], dict]] = {
    "never": best,
    **{f"unless {odds} : 1 for more": partial(by_evidence, odds=odds) for odds in (1, 3, 10, 20, 100)},
    **{f"if no more weights, unless {odds} : 1 for more": partial(by_evidence, odds=odds, bounded=True)
       for odds in (1, 10, 20, 100)},
    **{f"unless {odds} : 1 for each further one": partial(by_priced_evidence, odds=odds)
       for odds in (1, 2, 3, 5, 10, 20)},
    **{f"unless {odds} : 1 for each further one, exact Hessian":
       partial(by_priced_evidence, odds=odds, key="exact evidence") for odds in (1, 3, 5, 10, 20)},
    "unless left-out rows are more likely with more": partial(by_rows_left_out, n_errors=0),
    "unless they are so by a standard error": partial(by_rows_left_out, n_errors=1),
}  # fmt: skip
KEYS = ("loss", "moderated", "error", "weights")
DEFAULT, DEFAULT_RULE = "30.0, 100.0, complete", "unless 10 : 1 for more"
SETS = [*(f"{name}, simulated" for name in SIMULATED), *FOLDED]


def ended(run: dict, rule: str, alone: bool) -> dict[str, float]:
    """The result of a rule for three starts, or the mean over each start alone."""
    runs = [{**run, "several": [start]} for start in run["several"]] if alone else [run]
    ends = [RULES[rule](each) for each in runs]
    one = float(np.mean([max(end["components"]) == 1 for end in ends]))
    return {"one": one} | {key: float(np.mean([end[key] for end in ends])) for key in KEYS}


def line_of(results: dict, title: str, setting: str, rule: str, alone: bool) -> str:
    """Every set: log-loss plug-in, moderated (error %; weights); means, and their differences to the default."""
    cells, means, differences, variances = [], [], [], []
    for name in (*SIMULATED, *FOLDED):
        runs, base = (results["runs"].get(known_as(which, name), {}) for which in (setting, DEFAULT))
        shared = sorted(runs.keys() & base.keys())
        if len(shared) < 2:
            return ""
        ends = [ended(runs[key], rule, alone) for key in shared]
        means.append([np.mean([end[key] for end in ends]) for key in KEYS])
        one = sum(end["one"] for end in ends)
        cells.append("{:.4f}, {:.4f} ({:.2f}; {:.1f}); {:.0f}".format(*means[-1], one))
        pairs = zip(ends, (ended(base[key], DEFAULT_RULE, alone) for key in shared), strict=True)
        apart = np.array([[end[key] - other[key] for key in KEYS] for end, other in pairs])
        differences.append(apart.mean(0))
        variances.append(apart.var(0, ddof=1) / len(apart))
    error = np.sqrt(np.sum(variances, 0)) / len(variances)
    mean = "{:.4f}, {:.4f} ({:.2f}; {:.1f})".format(*np.mean(means, 0))
    apart = [f"{d:+.{n}f} ± {e:.{n}f}" for d, e, n in zip(np.mean(differences, 0), error, (4, 4, 2), strict=False)]
    return row([title, *cells, mean, *apart])


def table(results: dict, title: str, lines: list[tuple[str, str, str]], alone: bool = False) -> list[str]:
    """Lines of a title, a setting and a rule each."""
    head = row([title, *SETS, "mean", "log-loss to the default", "moderated", "error %"])
    body = [line_of(results, *line, alone) for line in lines]
    return [head, row(["---"] * head.count(" | ") + ["---"]), *filter(None, body), ""]


def as_markdown(results: dict) -> str:
    counts = [f"{name} {len(results['runs'].get(f'{DEFAULT}, {name}', {}))}" for name in (*SIMULATED, *FOLDED)]
    lines = [
        "# Defaults of sparse learning on simulated sets and training rows",
        "",
        "Written by `python -m studies sparse-simulations` from sparse_simulations.json. No test row was read.",
        "",
        "Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".",
        "",
        f"Simulated sets, each with {N_JUDGING} more rows to judge by: Ripley's law (250 rows), two crescents (400),",
        "one wave of Breiman's against the two others (400), two or three classes of one Gaussian each (80 rows a",
        "class, started with ten components a class, all others with three). Of real sets folds of the training rows.",
        "Sets: " + ", ".join(counts) + "; some settings have fewer, and are compared on those.",
        "",
        "Every cell: log-loss plug-in, moderated (error %; weights); how many sets end with one component per class.",
        "Last columns: differences of the mean over all data to the default, in pairs, ± standard error.",
        "",
        "## Settings",
        "",
        "start_variance, expected_variance and Hessian, without a trial of one component per class and with the",
        f"default's ({DEFAULT_RULE}).",
        "",
        *table(results, "settings; one component per class", [
            (f"{setting}; {rule}", setting, rule) for setting in COMPARED for rule in ("never", DEFAULT_RULE)
        ]),
        "## One component per class",
        "",
        "When it takes the place of the start of most evidence, with the default settings.",
        "",
        *table(results, "one component per class", [(rule, DEFAULT, rule) for rule in RULES]),
        "## One component per class, one start",
        "",
        "The same where there is one start of several components (n_init=1), in the mean of the three.",
        "",
        *table(results, "one component per class", [(rule, DEFAULT, rule) for rule in RULES], alone=True),
            ]  # fmt: skip
    return "\n".join(lines)


def compute(options: Options) -> None:
    one_thread()
    file = options.out / "sparse_simulations.json"
    results = json.loads(file.read_text()) if file.exists() else {"runs": {}}
    missing = (task for task in planned(COMPARED, options.n_seeds(N_SETS))
               if task[2] not in results["runs"].get(f"{task[0]}, {task[1]}", {}))  # fmt: skip
    tasks = list(islice(missing, 1 if options.quick else None))
    if tasks:
        results["machine"] = machines(results)
    for (setting, name, where), record in done(tasks, measure, options.jobs):
        results["runs"].setdefault(f"{setting}, {name}", {})[where] = record
        write_json(file, results)
        print(setting, name, where, flush=True)


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON file, if it is there and has more than one set."""
    path = folder / "sparse_simulations.json"
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    return {"sparse_simulations.md": as_markdown(results)} if len(results["runs"]) > 1 else {}
