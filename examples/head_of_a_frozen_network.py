"""
The head of a frozen network: closed form, doubt, fine-tuning
=============================================================

A network that was trained for one task serves another: its last layer is replaced, and the rest is kept. The new layer
need not be trained by gradient. One Gaussian per class of the features has a closed form, which takes a second, gives
calibrated probabilities, and knows inputs that are unlike its classes. As a ``MixtureHead`` it is the start of
fine-tuning with the network unfrozen.

Here the network is small and is trained on the digits 0 to 4. The new task is to tell the digits 5 to 9 apart.
"""

import copy
import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from mixtura import MixtureClassifier
from mixtura.nn import MixtureHead

torch.manual_seed(0)
X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = (X / 16).float()
old, new = y < 5, y >= 5


def train(network, X, y, n_epochs, rate, watch=lambda: None):
    """The same loop for every network; `watch` is called before and after every epoch."""
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    watch()
    for _ in range(n_epochs):
        network.train()
        for rows in torch.randperm(len(X)).split(32):
            optimiser.zero_grad()
            functional.cross_entropy(network(X[rows]), y[rows]).backward()
            optimiser.step()
        network.eval()
        watch()


# %%
# **The old task.** 128 features, and a linear layer for five digits.
body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
train(nn.Sequential(body, nn.Linear(128, 5)), X[old], y[old], n_epochs=20, rate=2e-3)
print(f"{int(old.sum())} images of the digits 0 to 4 trained the network")

# %%
# **The new task.** The features of a hundred images of the other digits give the head.
images, images_test, labels, labels_test = train_test_split(X[new], y[new] - 5, train_size=100, random_state=0)
with torch.no_grad():
    features, features_test, features_old = body(images), body(images_test), body(X[old])

began = time.process_time()
model = MixtureClassifier(random_state=0, average=1).fit(features, labels)
head = MixtureHead.from_estimator(model).eval()
seconds = time.process_time() - began
with torch.no_grad():
    error = float((head(features_test).argmax(1) != labels_test).float().mean())
    loss = float(functional.cross_entropy(head(features_test), labels_test))
print(f"{head}: error {100 * error:.1f} %, log-loss {loss:.2f}, after {seconds:.1f} s")
print(model.search_)

# %%
# ``MixtureHead.from_features(features, labels)`` does both steps at once. The way back is ``head.to_estimator()``, a
# ``MixtureClassifier`` with the same probabilities.
print(bool((head.to_estimator().predict(features_test) == head(features_test).argmax(1)).all()))

# %%
# **Doubt.** The digits 0 to 4 are unlike all classes of the new task. The density says so; a softmax cannot.
scores = {name: model.outlier_score(part) for name, part in (("5 to 9", features_test), ("0 to 4", features_old))}
unknown = torch.cat((torch.zeros(len(features_test)), torch.ones(len(features_old))))
doubtful = 1 - torch.cat([model.predict_proba(part).max(1).values for part in (features_test, features_old)])
print(f"area under the ROC curve: {roc_auc_score(unknown, torch.cat(list(scores.values()))):.3f} by the outlier score,")
print(f"{roc_auc_score(unknown, doubtful):.3f} by the largest probability")

# %%
# **Fine-tuning.** The whole network is trained on the hundred images: once from the closed form, once from a new linear
# layer. After twenty epochs the new layer has not reached the error with which the closed form begins.
errors, heads = {}, {"closed form": head, "new linear layer": nn.Linear(128, 5)}
for name, start in heads.items():
    network = nn.Sequential(copy.deepcopy(body), copy.deepcopy(start)).eval()
    course = errors.setdefault(name, [])

    def watch(network=network, course=course):
        with torch.no_grad():
            course.append(100 * float((network(images_test).argmax(1) != labels_test).float().mean()))

    train(network, images, labels, n_epochs=20, rate=5e-4, watch=watch)
    print(f"{name:18} error at the start {course[0]:.1f} %, after 20 epochs {course[-1]:.1f} %")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for name, course in errors.items():
    left.plot(course, marker=".", label=name)
left.set(xlabel="epochs of fine-tuning", ylabel="test error, %", ylim=(0, 60))
left.legend()
for name, values in scores.items():
    right.hist(values.numpy(), bins=40, density=True, alpha=0.6, label=f"digits {name}")
right.set(xlabel="outlier score", ylabel="density")
right.legend()

if __name__ == "__main__":
    plt.show()
