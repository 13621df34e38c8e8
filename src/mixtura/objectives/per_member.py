"""The likelihoods of several mixtures (ensemble members) on the same rows, evaluated together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mixtura.objectives.likelihood import Joint, posteriors
from mixtura.values.targets import Evaluation, Targets


@dataclass(frozen=True)
class Members:
    """Log-likelihoods of all ensemble members, weighted by the counts of the samples in their training sets (members).

        values (2 B, n): counts_nb log p_b(x_n, c_n), then log p_b(x_n, c_n) of the held-out samples of member b;
        numerator (K, n): counts_nb times the posterior among the components of member b.

    Parameters
    ----------
    member_of : Tensor of shape (n_components,)
        Member of each component; the components of a class are sorted by it.
    columns : Tensor of shape (n_members,)
        Columns of the sample counts that belong to the members; without counts every sample counts once.
    """

    member_of: Tensor
    columns: Tensor
    _layouts: dict[tuple[int, int], list[slice | Tensor] | None] = field(default_factory=dict, repr=False)
    name = "members"
    own_class_only = True
    needs_denominator = False
    has_density = True

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        counts = None if targets.counts is None else targets.counts[:, self.columns].T.to(log_joint.dtype)  # (B, n)
        parts = self._parts(targets.components or slice(0, len(log_joint)))
        if parts is None and targets.labels is None and targets.shares is None:
            values, numerator = _side_by_side(log_joint, len(self.columns), counts)
        else:
            values, numerator = self._one_by_one(log_joint, targets, counts, parts)
        if counts is None:
            return Evaluation(values, numerator)
        unseen = torch.where(counts == 0, values, 0.0)
        seen = torch.where(counts == 0, 0.0, counts * values)
        return Evaluation(torch.cat((seen, unseen)), numerator)

    def _one_by_one(
        self, log_joint: Tensor, targets: Targets, counts: Tensor | None, parts: list[slice | Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        size = len(log_joint) // len(self.columns)
        parts = [slice(b, b + size) for b in range(0, len(log_joint), size)] if parts is None else parts
        values, numerator = log_joint.new_empty(len(parts), log_joint.shape[1]), torch.empty_like(log_joint)
        for b, part in enumerate(parts):
            member = Joint().evaluate(log_joint[part], replace(targets, class_of=targets.class_of[part]))
            values[b] = member.values
            numerator[part] = member.numerator if counts is None else member.numerator * counts[b]
        return values, numerator

    def _parts(self, components: slice) -> list[slice | Tensor] | None:
        """The positions of each member among these components; None if members have equal sizes and are contiguous."""
        key = (components.start, components.stop)
        if key not in self._layouts:
            members = self.member_of[components]
            sizes = members.bincount(minlength=len(self.columns)).tolist()
            if bool((members.diff() < 0).any()):
                layout: list[slice | Tensor] | None = [(members == b).nonzero()[:, 0] for b in range(len(sizes))]
            elif len(set(sizes)) == 1:
                layout = None
            else:
                ends = [0, *itertools.accumulate(sizes)]
                layout = [slice(first, last) for first, last in itertools.pairwise(ends)]
            self._layouts[key] = layout
        return self._layouts[key]


def _side_by_side(log_joint: Tensor, n_members: int, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """log sum_k exp a_k of each member (B, n), and the posteriors among its components times its counts, (K, n)."""
    values, within = posteriors(log_joint.unflatten(0, (n_members, -1)), 1)  # (B, n), (B, k, n)
    return values, (within if counts is None else within.mul_(counts.unsqueeze(1))).flatten(0, 1)
