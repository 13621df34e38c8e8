"""The published tables: pages equal what the results render to, results are not older than the code, scripts run."""

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import ROOT
from mixtura.covariances import FullCovariance, LowRankCovariance
from mixtura.model.mixture import Mixture

sys.path.insert(0, str(ROOT))

from reproduce import behaviour, discriminative, few_labels, heads, hybrid, readme, registry, sparse_table, stamps
from reproduce.__main__ import check_data, compute, main
from reproduce.data import PUBLIC
from reproduce.options import Options
from reproduce.registry import TABLES
from studies import comparison, documents, hybrid_search, overview

FILES = sorted(path.name for path in stamps.RESULTS.glob("*.json"))
with_results = pytest.mark.skipif(not FILES, reason="a source distribution has no result files")


@with_results
@pytest.mark.parametrize("name", TABLES)
def test_pages_equal_what_the_results_render_to(name):
    for file, text in TABLES[name].pages(stamps.RESULTS).items():
        assert (stamps.RESULTS / file).read_text() == text, f"{file} is not what its JSON renders to: reproduce render"


@with_results
def test_every_result_belongs_to_a_table():
    assert {file for table in TABLES.values() for file in table.results} | set(registry.OF_STUDIES) >= set(FILES)


def test_a_resumed_result_keeps_its_stamps(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('{"runs": {}}')
    before = stamps.stamps_of(path)
    stamps.add_stamp(path, before)
    assert stamps.stamps_of(path) == [{"code": stamps.UNSTAMPED}, stamps.stamp()]
    stamps.add_stamp(path, [])  # a fresh run
    assert stamps.stamps_of(path) == [stamps.stamp()]


# ---- every script on generated data ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_data(tmp_path_factory):
    """Files with the names and shapes of the published sets, of a few hundred samples."""
    folder = tmp_path_factory.mktemp("data")
    behaviour.write_small_data(folder)
    return folder


LONG = ("ot95-table1", "ot95-table2", "kjo03", "lzz06-table1", "lzz06-table2", "rptp18-table2", "rptp18-figure3",
        "hu21-table1")  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in TABLES]
)
def test_every_script_runs_from_data_to_page(name, small_data, tmp_path, monkeypatch, one_thread):
    monkeypatch.setenv("MIXTURA_DATA", str(small_data))
    for constant, value in behaviour.SMALLER.get(name, {}).items():
        monkeypatch.setattr(discriminative, constant, value)
    main([name, "--quick", "--device", "cpu", "--out", str(tmp_path)])
    files = [file for file in TABLES[name].results if (tmp_path / file).exists()]
    assert files
    for file in files:
        assert stamps.stamps_of(tmp_path / file)[-1] == stamps.stamp()
    for file, text in TABLES[name].pages(tmp_path).items():
        assert (tmp_path / file).read_text() == text
        assert "nan" not in text, text
    changed = behaviour.changes(name, behaviour.figures_of(name, tmp_path))
    assert not changed, "\n".join(
        [f"{name} computes other figures; if that is meant, run python -m reproduce behaviour {name}", *changed]
    )


# ---- what is said about the tables -----------------------------------------------------------------------------------


@with_results
def test_the_readme_and_the_page_of_all_tables_are_rendered():
    assert readme.PAGE.read_text() == readme.text(), "run python -m reproduce render"
    assert overview.PAGE.read_text() == overview.page(), "run python -m studies render"
    for path, text in documents.documents().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python -m studies render"


def test_figures_of_a_fragment_are_replaced_where_they_stand():
    text = "On 7 digits the\n  error is 1.30 % (EM:\n  2 %), see 1.30."
    fragment = "error is {ours:.2f} % (EM: {em:g} %)"
    actual = documents.rendered(text, fragment, {"ours": 1.218, "em": 2.5})
    assert actual == "On 7 digits the\n  error is 1.22 % (EM:\n  2.5 %), see 1.30."
    with pytest.raises(ValueError, match="a fragment must be in its document once; got 0 times: error of"):
        documents.rendered(text, "error of {ours}", {"ours": 1})


@pytest.mark.parametrize(
    ("published", "error", "own", "verdict"),
    [
        (5.0, 0.2, (4.0, 4.2), "better"),
        (5.0, 0.2, (4.8, 5.0), "equal"),
        (5.0, 0.0, (5.0,), "equal"),
        (5.0, 0.2, (6.0, 6.2), "worse"),
        (5.0, 0.2, (), "absent"),
    ],
)
def test_a_figure_is_equal_within_the_standard_error_of_the_difference(published, error, own, verdict):
    assert comparison.judged("row", "column", published, error, own, other=False, lower=True).verdict == verdict
    opposite = {"better": "worse", "worse": "better"}
    actual = comparison.judged("row", "column", published, error, own, other=False, lower=False).verdict
    assert actual == opposite.get(verdict, verdict)


def test_published_errors_are_printed_or_binomial():
    table = stamps.published()["RPTP18 table 2"]
    assert comparison.published_error(table, "SSL (LM)", "100", 5.08) == pytest.approx(0.22, abs=0.005)
    table = stamps.published()["OT95 table 1"]
    assert comparison.published_error(table, "beta 0.02", "accuracy", 84.4) == 1.41


def test_a_sentence_counts_every_published_figure(tmp_path):
    for block in comparison.BLOCKS:
        cells = comparison.counted(block, tmp_path)
        text = comparison.sentence(block, tmp_path)
        groups = Counter(cell.group for cell in cells)
        if groups[comparison.METHOD]:
            method = groups[comparison.METHOD]
            assert text.startswith(f"Of {method} published figures {method} absent ("), text
        assert (f"{groups[comparison.FIXED]} cannot fail: " in text) == bool(groups[comparison.FIXED])
        assert cells


def test_methods_that_a_paper_compares_with_are_counted_apart():
    table = stamps.published()["HU21 table 1, weights"]
    assert comparison.group_of(table, "Ripley", "GP") == comparison.FIXED
    assert comparison.group_of(table, "Ripley", "RVM") == comparison.COMPARATOR
    assert comparison.group_of(table, "Ripley", "SDGM") == comparison.METHOD
    for name, own in stamps.published().items():
        assert set(own.get("comparators", ())) <= {*own["rows"], *own["columns"]}, name


@pytest.mark.parametrize(("start", "verdict"), [((1.3, 1.4), "below start"), ((1.5, 1.5), "better"), ((), "better")])
def test_a_fit_that_is_worse_than_its_start_is_not_called_better(start, verdict):
    cell = ("MNIST (pca50)", "LL+CLL")  # published 1.81
    block = comparison.Block(
        "RPTP18 table 1", "test", lambda folder: {cell: [1.40, 1.42]}, starts=lambda folder: {cell: start}
    )
    (own,) = [c for c in comparison.compared(block) if c.values]
    assert own.verdict == verdict


@with_results
def test_every_hybrid_that_starts_from_averages_is_compared_with_them():
    (block,) = [block for block in comparison.BLOCKS if block.name == "settings by validation"]
    starts = block.starts(stamps.RESULTS)
    results = json.loads((stamps.RESULTS / "hybrid.json").read_text())["MNIST (pca50), searched"]
    from_averages = {name for name, runs in results.items() if any(r.get("start") == "averaged" for r in runs.values())}
    assert from_averages == {"LL+LM", "LM", "LL+CLL", "CLL"}
    assert all(len(starts["MNIST (pca50)", name]) for name in from_averages)


def test_a_hybrid_without_averages_is_compared_with_sizes_by_validation(tmp_path):
    of_validation, row = {"LL, sizes by validation": {"0": {"test": 1.0}}}, "Rotated"
    (tmp_path / "hybrid.json").write_text(json.dumps({"rotated": of_validation, "rotated, diagonal": of_validation}))
    cells = comparison.of_averages(("LL", "CLL", "diagonal LL+LM"))(tmp_path)
    assert {column: errors for (name, column), errors in cells.items() if name == row} == {
        "CLL": [1.0],
        "diagonal LL+LM": [1.0],
    }


@with_results
def test_every_paper_has_a_sentence_on_its_claim():
    from studies.claims import CLAIMS

    assert list(CLAIMS) == list(registry.PAPERS)
    for claim in CLAIMS.values():
        assert re.match(r"\*\*Claim: .*eproduced", claim(stamps.RESULTS))
        assert claim(stamps.RESULTS.parent) == ""  # a folder without results


def test_absent_figures_have_a_reason(tmp_path):
    blocks = {block.name: block for block in comparison.BLOCKS}
    reasons = {(cell.row, cell.column): cell.reason for cell in comparison.compared(blocks["our recipe"], tmp_path)}
    assert reasons["SDGM", "MNIST, D = 2"] == comparison.NOT_COMPUTED
    assert reasons["SDGM", "ImageNet"] == "the images are not at hand"
    cells = comparison.compared(blocks["label spreading (ours)"], tmp_path)
    assert {cell.reason for cell in cells if cell.row == "SV (LM)"} == {comparison.NOT_HERE}
    assert len(comparison.counted(blocks["label spreading (ours)"], tmp_path)) == 8


def test_kernels_chosen_among_fewer_widths_are_named():
    record = {"data": "synth", "set": 0, "method": "svm", "n_widths": len(discriminative.WIDTHS)}
    assert "narrow search:" not in discriminative.searches([record])
    older = {"data": "pima", "set": 0, "method": "rvm"}
    assert discriminative.searches([record, older]).endswith("still of the narrow search: rvm: pima.")
    assert not discriminative.is_narrow({"data": "synth", "method": "dgmm"})


def test_fetch_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    def failing(path):
        raise OSError("no network")

    monkeypatch.setenv("MIXTURA_DATA", "")  # main sets it; restored afterwards
    monkeypatch.setattr("reproduce.__main__.download_into", failing)
    (tmp_path / "bupa.npz").write_bytes(b"")
    with pytest.raises(SystemExit) as stopped:
        main(["fetch", "--data", str(tmp_path)])
    assert stopped.value.code == 1
    printed = capsys.readouterr()
    assert printed.err == f"{len(PUBLIC) - 1} of {len(PUBLIC)} data sets were not fetched\n"
    lines = printed.out.splitlines()
    assert "bupa: there already" in lines
    assert any(line.startswith("cbcl_faces.npz: cannot be fetched; its source is MIT CBCL") for line in lines)
    assert "mnist: not fetched: no network" in lines
    assert "ratsch_banana: not fetched: no network" in lines


# ---- the entrance ----------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results with two files: one of a table alone, one that tables share."""
    (tmp_path / "regularised_bupa.json").write_text('{"repetitions": {"200": {}}}')
    entries = '{"stamps": [{"code": "older"}], "MNIST": {"LL": {}}, "few labels": {"100: SV (LM)": {}}, "missing": {}}'
    (tmp_path / "hybrid.json").write_text(entries)
    monkeypatch.setenv("MIXTURA_DATA", str(tmp_path / "data"))
    return tmp_path


def of(folder, name="hybrid.json"):
    return json.loads((folder / name).read_text())


def stopping(folder, name, entries):
    """A script that writes some results and then fails, as on Ctrl-C."""

    def run(options):
        if entries:
            known = of(folder, name) if (folder / name).exists() else {}
            stamps.write_json(folder / name, {**known, **entries})
        raise KeyboardInterrupt

    return run


def test_a_cell_is_computed_alone_and_a_wrong_name_lists_them(small_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MIXTURA_DATA", str(small_data))
    options = ["--quick", "--device", "cpu", "--out", str(tmp_path)]
    main(["rptp18-table1", "--cell", "MNIST (pca50), LL", *options])
    results = of(tmp_path)
    assert set(results) == {"stamps", "MNIST (pca50)", "versions"}
    assert set(results["MNIST (pca50)"]) == {"LL"}
    with pytest.raises(SystemExit):
        main(["rptp18-table1", "--cell", "MNIST, EM", *options])
    message = capsys.readouterr().err
    assert "--cell must be one of those below; got 'MNIST, EM'" in message
    assert "\n  basic (pca50), searched, LL+LM\n" in message


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.cells])
def test_a_wrong_cell_lists_those_of_its_table(name, small_data, tmp_path, monkeypatch, capsys, one_thread):
    monkeypatch.setenv("MIXTURA_DATA", str(small_data))
    with pytest.raises(SystemExit):
        main([name, "--cell", "none", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    message = capsys.readouterr().err
    assert f"{name} stopped: --cell must be one of those below; got 'none'\n  " in message


def test_a_digest_is_of_figures_to_nine_digits_and_of_no_times(tmp_path):
    def of_runs(error, seconds):
        runs = {"0": {"error": error, "seconds": seconds, "device": "abacus", "curve": [1.0, float("nan")]}}
        stamps.write_json(
            tmp_path / "sparse_components.json", {"runs": {"defaults/4": runs}, "machine": {"threads": 1}}
        )
        return behaviour.figures_of("hu21-appendix-b", tmp_path)

    figures = of_runs(1 / 3, 5.0)
    place = "sparse_components.json/runs/defaults/4/0/"
    assert figures == {f"{place}error": 0.333333333, f"{place}curve/0": 1.0}
    assert behaviour.digest(figures) == behaviour.digest(of_runs(1 / 3 + 1e-12, 6.0))
    assert behaviour.digest(figures) != behaviour.digest(of_runs(1 / 3 + 1e-8, 5.0))


def test_changed_figures_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(behaviour, "FILE", tmp_path / "behaviour.json")
    text = {"computer": behaviour.computer(), "tables": {"kjo03": {"error": 8.9, "gone": 1.0}}}
    behaviour.FILE.write_text(json.dumps(text))
    assert behaviour.changes("kjo03", {"error": 8.9, "gone": 1.0}) == []
    actual = behaviour.changes("kjo03", {"error": 9.0, "new": 2.0})
    assert actual == ["error: 8.9 before, 9.0 now", "gone: 1.0 before, None now", "new: None before, 2.0 now"]
    now, other = {"behaviour": behaviour.digest_of("kjo03")}, {"behaviour": "12345678"}
    assert behaviour.state_of([now], "kjo03") == "as now"
    assert behaviour.state_of([other, now], "kjo03") == "in part as now"
    assert behaviour.state_of([other], "kjo03") == "older than the behaviour now"
    assert behaviour.state_of([{"code": "unstamped"}], "kjo03") == "before behaviour was recorded"


def test_small_versions_see_no_data_of_the_run_before(small_data, tmp_path, monkeypatch):
    arrays = dict(np.load(small_data / "ripley.npz"))
    np.savez(tmp_path / "ripley.npz", **{**arrays, "X_train": arrays["X_train"][:9], "y_train": arrays["y_train"][:9]})
    monkeypatch.setenv("MIXTURA_DATA", str(tmp_path))
    sizes = []

    def run(options=None):
        sizes.append(len(sparse_table.splits("ripley")[0][0]))

    monkeypatch.setattr(registry, "_function", lambda path: run)
    run()
    behaviour.run_small("hu21-table1", small_data, tmp_path)
    run()
    assert sizes == [9, 150, 9]


def test_results_of_today_are_stamped_with_the_behaviour_of_today(results, monkeypatch):
    monkeypatch.setattr(registry, "_function", lambda path: stopping_never)
    monkeypatch.setattr(behaviour, "measure", lambda name: {"error": 1.0})
    compute(TABLES["rptp18-figure3"], Options(results), fresh=False)
    assert stamps.stamps_of(results / "hybrid.json")[-1]["behaviour"] == behaviour.digest({"error": 1.0})


def stopping_never(options):
    return {}


def test_a_fresh_run_that_fails_at_once_keeps_the_results(results, monkeypatch):
    for table, name in (("ot95-table2", "regularised_bupa.json"), ("rptp18-table2", "hybrid.json")):
        before = (results / name).read_text()
        monkeypatch.setattr(registry, "_function", lambda path, name=name: stopping(results, name, {}))
        with pytest.raises(KeyboardInterrupt):
            compute(TABLES[table], Options(results), fresh=True)
        assert (results / name).read_text() == before
        assert not list(results.glob("*.before"))


def test_a_fresh_run_that_is_stopped_keeps_both_results(results, monkeypatch, capsys):
    script = stopping(results, "hybrid.json", {"few labels": {"new": {}}})
    monkeypatch.setattr(registry, "_function", lambda path: script)
    before = of(results)
    for _ in range(2):  # stopped twice, the oldest results stay
        with pytest.raises(KeyboardInterrupt):
            compute(TABLES["rptp18-table2"], Options(results), fresh=True)
        assert of(results)["few labels"] == {"new": {}}
        assert of(results)["MNIST"] == before["MNIST"]
        assert of(results, "hybrid.json.before") == before
    assert f"earlier results are in {results / 'hybrid.json.before'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ("rptp18-table1", {"few labels", "missing"}),
        ("rptp18-table2", {"MNIST", "missing"}),
        ("rptp18-figure3", {"MNIST", "few labels"}),
    ],
)
def test_a_fresh_run_leaves_other_tables_of_its_file_alone(table, kept, results, monkeypatch):
    def run(options):
        assert set(of(results)) - {"stamps"} == kept
        stamps.write_json(results / "hybrid.json", {**of(results), "added": {}})

    monkeypatch.setattr(registry, "_function", lambda path: run if path == TABLES[table].run_by else lambda folder: {})
    monkeypatch.setattr(behaviour, "stamp_of", lambda name: "")
    compute(TABLES[table], Options(results), fresh=True)
    assert set(of(results)) - {"stamps"} == {*kept, "added"}
    assert of(results)["stamps"] == [{"code": "older"}, stamps.stamp()]
    assert not list(results.glob("*.before"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hu21"], "invalid choice: 'hu21'"),
        (["ot95-table1", "--seeds", "0"], "argument --seeds: must be at least 1; got 0"),
        (["ot95-table1", "--jobs", "-1"], "argument --jobs: must be at least 1; got -1"),
        (["ot95-table1", "--device", "abacus"], "argument --device: abacus cannot be used"),
        (["ot95-table1", "hu21-table1"], "ot95-table1 takes no further words; got hu21-table1"),
        (["ot95-table1", "--fresh", "--seeds", "2"], "--fresh with --seeds needs --out FOLDER: fewer seeds must not"),
        (["kjo03", "--fresh", "--cell", "synth, svm"], "--fresh with --cell needs --out FOLDER: one cell must not"),
        (["ot95-table1", "--cell", "bootstrap"], "ot95-table1 has no cells: all of its rows are computed together"),
        (["ot95-table1", "--quick"], "--quick needs --out FOLDER"),
        (["ot95-table1", "--quick", "--out", "reproduce/results"], "--quick needs --out FOLDER"),
        (["ot95-table2"], "ot95-table2 needs data files; {folder} lacks\n  bupa.npz: python -m reproduce fetch\n"),
        (["lzz06-table1"], "  cbcl_faces.npz: from its source, MIT CBCL Face Database 1, training part\n"),
        (["ot95-table2", "--quick", "--out", "{folder}"], "ot95-table2 stopped: bupa.npz was not found: {folder}"),
    ],
)
def test_mistakes_have_a_message_and_change_nothing(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MIXTURA_DATA", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in stamps.RESULTS.iterdir()} if FILES else {}
    with pytest.raises(SystemExit) as stopped:
        main([argument.format(folder=tmp_path) for argument in arguments])
    assert stopped.value.code == 2
    assert message.format(folder=tmp_path) in capsys.readouterr().err
    assert before == ({path: path.stat().st_mtime_ns for path in stamps.RESULTS.iterdir()} if FILES else {})


def test_data_that_cannot_be_fetched_are_left_out_where_there_are_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MIXTURA_DATA", str(tmp_path))
    for name in ("ripley", "pima", "mnist"):
        (tmp_path / f"{name}.npz").write_bytes(b"")
    check_data(argparse.ArgumentParser(), "kjo03")
    assert "peterson_barney.npz: from its source, Peterson & Barney" in capsys.readouterr().out
    (tmp_path / "pima.npz").unlink()
    with pytest.raises(SystemExit):
        check_data(argparse.ArgumentParser(), "kjo03")


# ---- ingredients of RPTP18 -------------------------------------------------------------------------------------------


def test_plain_columns_are_the_same_model_with_a_parameter_for_every_entry():
    torch.manual_seed(0)
    covariance = hybrid.PlainColumns(torch.rand(3, 6).double() + 0.2, torch.randn(3, 6, 2).double(), smallest=0.1)
    free = covariance.unconstrained()
    assert free["columns"].shape == (3, 2, 6)
    torch.testing.assert_close(covariance.constrained(free).dense(), covariance.dense())
    rotated = LowRankCovariance(covariance.diagonals, covariance.columns, smallest=0.1)
    quadratics = covariance.quadratic(free), rotated.quadratic(rotated.unconstrained())
    torch.testing.assert_close(quadratics[0].log_determinants, quadratics[1].log_determinants)


def test_a_plain_start_has_no_column_of_zeros():
    """Covariances of few samples have few directions beyond epsilon I; a column of zeros would never be learned."""
    torch.manual_seed(0)
    spread = torch.randn(2, 8, 2).double()
    full = FullCovariance(spread @ spread.mT + 0.1 * torch.eye(8).double())
    mixture = Mixture(torch.full((2,), 0.5).double().log(), torch.zeros(2, 8).double(), full, torch.arange(2))
    start = hybrid.plain(mixture, rank=5, epsilon=0.1).covariance
    assert (start.columns.square().sum(1) > 0.05).all()
    assert (start.diagonals >= 0.1).all()


@with_results
def test_chosen_settings_are_those_of_the_best_trials():
    results, tables = hybrid_search.read(Options(hybrid_search.RESULTS)), set()
    for table, rows in results.items():
        for row, runs in rows.items() if table.endswith(", search") else ():
            plain = table.removesuffix(", search")
            name, settings, epochs = hybrid_search.best_of(runs)
            start = hybrid_search.SPACES[plain].starts[name]
            own = hybrid.CHOSEN[plain][row]
            assert (own.start, own.epochs) == (start, epochs), (plain, row)
            assert own.settings == replace(settings, rank=start.rank), (plain, row)  # a full covariance has no rank
            tables.add(plain)
    assert tables == set(hybrid.CHOSEN)


def test_the_labeled_samples_of_the_paper_are_those_of_its_program():
    labels = torch.arange(1000)
    actual = few_labels.subset_of({"train": (None, labels)}, 50, few_labels.PAPER)
    expected = np.random.RandomState(1).permutation(np.arange(1000))[:50]
    assert sorted(actual[actual >= 0].tolist()) == sorted(expected.tolist())


# ---- heads of networks -----------------------------------------------------------------------------------------------


@with_results
def test_the_document_has_the_results():
    """Errors and pruned weights in docs/heads.md are those of the page that the script wrote."""
    page, document = ((ROOT / path).read_text() for path in ("studies/results/heads.md", "docs/heads.md"))
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(("| softmax |", "| disc", "| SDGM"))]
    assert len(rows) == 9
    for cells in rows:
        assert f"{cells[2]} ({cells[1]})" in document, cells
        if "SDGM" in cells[0]:
            assert cells[5] in document


def test_quality_is_that_of_hand_made_predictions():
    logits = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.4, 0.6]]).log()
    actual = heads.quality(logits, torch.tensor([0, 0, 1, 1]))
    assert actual["error"] == pytest.approx(25)
    assert actual["nll"] == pytest.approx(-np.log([0.8, 0.8, 0.2, 0.6]).mean(), rel=1e-5)
    assert actual["ece"] == pytest.approx(100 * (0.4 + 0.4) / 4, rel=1e-4)  # 2.4 of 3 against 2, and 0.6 of 1 against 1


def test_networks_trained_side_by_side_are_those_trained_alone(monkeypatch):
    monkeypatch.setattr(heads, "RATE", 0.05)  # so that a few steps move the weights
    torch.manual_seed(0)
    labels = torch.arange(6 * heads.BATCH) % 3
    images = (torch.randint(0, 100, (len(labels), 1, 28, 28)) + 70 * labels[:, None, None, None]).to(torch.uint8)
    data = heads.Data(images, labels)
    trainer = heads.Trainer(heads.COLUMNS["mnist_2"], data, 0, epochs=1, width=8)
    orders = trainer.orders.clone()
    heads.train_together([trainer])
    for number, method in enumerate(heads.METHODS):
        if method == "sparse":  # draws noise, in another order
            continue
        network, head = trainer.model(method)
        before = network[0].weight.detach().clone()
        optimiser = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=heads.RATE, momentum=heads.MOMENTUM)
        for rows in orders[number].split(heads.BATCH):
            logits = head(network(heads.pixels(images[rows])), labels[rows])
            loss = torch.nn.functional.cross_entropy(logits, labels[rows])
            if method == "softmax_l1":
                loss = loss + heads.SETTINGS[method]["l1"] * head.weight.abs().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        actual_network, actual_head = trainer.trained(method)
        assert (network[0].weight - before).abs().max() > 1e-4
        for actual, expected in ((actual_network, network), (actual_head, head)):
            for name, value in expected.state_dict().items():
                torch.testing.assert_close(
                    actual.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=f"{method} {name}"
                )


def test_a_stopped_column_continues_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "SAVED_EVERY", 1)
    labels = torch.arange(2 * heads.BATCH) % 3
    data = heads.Data(torch.randint(0, 255, (len(labels), 1, 28, 28), dtype=torch.uint8), labels)

    def trainer(epochs):
        return heads.Trainer(heads.COLUMNS["mnist_2"], data, 0, epochs, width=4)

    first, second, whole = trainer(1), trainer(1), trainer(3)
    assert heads.train_together([first], tmp_path / "column.state") == 0
    assert heads.train_together([second], tmp_path / "column.state") == 1  # has its epoch already
    torch.testing.assert_close(second.state(), first.state())
    heads.train_together([whole], tmp_path / "column.state")
    assert int(whole.number) == 6
    assert len(list(tmp_path.iterdir())) == 1
