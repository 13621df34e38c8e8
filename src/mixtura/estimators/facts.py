"""Methods of every estimator with a density: parameters, information criteria, a summary."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixtura import checks
from mixtura.estimators.rows import as_array


def fit_facts(model: Any) -> dict[str, Any]:
    """Facts about the fit and its automatic choices."""
    known, facts = vars(model), {}
    if "n_iter_" in known:
        facts["iterations"] = f"{known['n_iter_']} ({'converged' if known.get('converged_') else 'not converged'})"
    if known.get("history_"):
        facts["objective per sample"] = known["history_"][-1].objective
    if known.get("further_members_"):
        facts["members"] = 1 + len(known["further_members_"])
    if known.get("temperature_", 1.0) != 1.0:
        facts["temperature"] = known["temperature_"]
    if known.get("outlier_source_"):
        facts["outliers judged by"] = f"{known['outlier_source_']} samples"
    if known.get("search_"):
        facts |= chosen_facts(known["search_"])
    return facts


def chosen_facts(search: Any) -> dict[str, Any]:
    """Facts about a search: candidates, criterion and choice."""
    criterion, n_compared = search.criterion.replace("_", " "), len(search.candidates)
    chosen = {f"chosen {name.replace('_', ' ')}": value for name, value in search.best.what.items()}
    expected = {} if search.estimate is None else {"expected on new samples": str(search.estimate)}
    return {"chosen by": f"{criterion} {search.best.score:.4f} ({n_compared} compared)", **chosen, **expected}


def label_facts(model: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, float]:
    """Log-loss and error rate of samples with labels."""
    numbers = checks.known_labels(y, model.classes_)
    log_proba = as_array(model.predict_log_proba(X))
    checks.as_many_labels(numbers, len(log_proba))
    weights = checks.sample_weight(sample_weight, len(numbers))
    weights = np.ones(len(numbers)) if weights is None else weights.cpu().numpy()
    own = log_proba[np.arange(len(numbers)), numbers]
    return {
        "log-loss": float(-(weights @ own) / weights.sum()),
        "error rate": float(weights @ (log_proba.argmax(1) != numbers) / weights.sum()),
    }
