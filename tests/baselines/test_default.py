"""DEFault against a direct recomputation with pandas and scikit-learn, and every departure from the published code."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, cross_val_score
from sklearn.preprocessing import StandardScaler

from baselines import default_recipe
from baselines.default import DEFault
from baselines.default_recipe import GRID, Cleaning, OneVsRest, RecipeForest, undersampled
from features.bench import Bench, BenchError
from features.taxonomy import CORRECT


def bench_of(n=160, n_columns=24, seed=0) -> Bench:
    """Three classes of make_classification: correct, ffn and output, the last two with two root causes each."""
    X, y = make_classification(n, n_columns, n_informative=10, n_classes=3, random_state=seed, class_sep=0.8)
    runs = pd.Index([f"run{i:03d}" for i in range(n)], name="run")
    category = np.array([CORRECT, "ffn", "output"], dtype=object)[y]
    causes = {CORRECT: [CORRECT] * 2, "ffn": ["weight_scaling", "regularization"], "output": ["output_type"] * 2}
    cause = [causes[c][int(X[i, 0] > 0)] for i, c in enumerate(category)]
    labels = pd.DataFrame({"faulty": y > 0, "category": category, "root_cause": cause}, index=runs)
    features = pd.DataFrame(X, index=runs, columns=[f"c{i}" for i in range(n_columns)])
    pair = pd.Series([f"m/{i // 2 % 6}" for i in range(n)], index=runs)
    return Bench("made", None, features, labels, pair)


def broken_table(seed=0) -> pd.DataFrame:
    """60 × 6 with gaps everywhere, both infinities in one column, one of each in two others."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(60, 6)), columns=list("abcdef"))
    table = table.mask(rng.random(table.shape) < 0.1)
    table.loc[3, "a"] = np.inf
    table.loc[4, "b"] = -np.inf
    table.loc[5:6, "c"] = [np.inf, -np.inf]
    return table


@pytest.fixture(scope="module")
def halves():
    bench = bench_of()
    return bench.take(np.arange(0, 160, 2)), bench.take(np.arange(1, 160, 2))


def direct(train_X, train_y, test_X, **forest):
    """The recipe written out with pandas and scikit-learn, for tables without infinities: predictions, P(last)."""
    train, test = train_X.fillna(train_X.mean()), test_X.fillna(train_X.mean())
    low, high = train.quantile(0.01), train.quantile(0.99)
    scaler = StandardScaler().fit(train.clip(low, high, axis=1))
    train, test = (scaler.transform(t.clip(low, high, axis=1)) for t in (train, test))
    ranking = RandomForestClassifier(100, random_state=42).fit(train, train_y)
    best = np.argsort(ranking.feature_importances_)[::-1][:20]
    fitted = RandomForestClassifier(**({"n_estimators": 100} | forest), random_state=42).fit(train[:, best], train_y)
    return fitted.predict(test[:, best]), fitted.predict_proba(test[:, best])[:, -1]


def test_cleaning_as_published_is_the_sequence_of_pandas_steps():
    table = broken_table()
    with np.errstate(invalid="ignore"):
        filled = table.apply(lambda c: c.fillna(c.mean()))
    filled = filled.replace([np.inf, -np.inf], np.nan).apply(lambda c: c.fillna(c.max()))
    clipped = filled.apply(lambda c: c.clip(c.quantile(0.01), c.quantile(0.99)))
    expected = StandardScaler().fit_transform(clipped)
    np.testing.assert_allclose(Cleaning("as_published").fit_transform(table), expected, atol=1e-12)
    # One infinity made every gap of its column the largest value there.
    assert (filled.loc[table["a"].isna(), "a"] == filled["a"].max()).all()


def test_cleaning_by_default_keeps_an_overflow_out_of_the_other_rows_gaps():
    table = broken_table()
    cleaning = Cleaning().fit(table)
    finite = table.replace([np.inf, -np.inf], np.nan)
    expected = finite.copy()
    expected.loc[3, "a"], expected.loc[4, "b"] = finite["a"].max(), finite["b"].min()
    expected.loc[5:6, "c"] = [finite["c"].max(), finite["c"].min()]
    expected = expected.fillna(expected.mean())
    clipped = expected.apply(lambda c: c.clip(c.quantile(0.01), c.quantile(0.99)))
    np.testing.assert_allclose(cleaning.transform(table), StandardScaler().fit_transform(clipped), atol=1e-12)


def test_cleaning_learns_from_training_rows_only():
    table = broken_table()
    cleaning = Cleaning().fit(table[:40])
    alone = np.vstack([cleaning.transform(table.iloc[[i]]) for i in range(40, 60)])
    np.testing.assert_array_equal(alone, cleaning.transform(table[40:]))


def test_columns_that_are_empty_or_constant_become_zero():
    table = pd.DataFrame({"empty": [np.nan] * 4, "constant": [0.1] * 4, "infinite": [np.inf] * 4, "x": [1.0, 2, 3, 4]})
    for infinities in ("first", "as_published"):
        cleaned = Cleaning(infinities).fit_transform(table)
        np.testing.assert_allclose(cleaned[:, :3], 0, atol=1e-12)
        assert cleaned[:, 3].std() == pytest.approx(1)


def test_level_1_is_the_recipe(halves):
    train, test = halves
    predicted, probability = direct(train.X.astype(float), train.faulty.to_numpy(), test.X.astype(float))
    verdicts = DEFault(balance="none").fit(train).predict(test).table
    assert (verdicts["faulty"] == predicted).all()
    np.testing.assert_allclose(verdicts["score"], probability, atol=1e-12)
    assert roc_auc_score(test.faulty, probability) > 0.7


def test_levels_2_and_3_are_the_surest_forest_and_the_categorys_own(halves):
    train, test = halves
    faulty = train.take(train.faulty)
    X, test_X = faulty.X.astype(float), test.X.astype(float)
    category = faulty.labels["category"].to_numpy(str)
    sure = np.column_stack([direct(X, category == c, test_X)[1] for c in ("ffn", "output")])
    expected = np.array(["ffn", "output"])[sure.argmax(axis=1)]
    verdicts = DEFault(balance="none").fit(train).predict(test).table
    assert (verdicts["category"] == expected).all()
    ffn = category == "ffn"
    cause, _ = direct(X[ffn], faulty.labels.loc[ffn, "root_cause"].to_numpy(str), test_X[expected == "ffn"])
    assert verdicts.loc[expected == "ffn", "root_cause"].tolist() == cause.tolist()
    assert (verdicts.loc[expected == "output", "root_cause"] == "output_type").all()
    stated = [json.loads(e)["categories"] for e in verdicts["evidence"]]
    assert [s[0][0] for s in stated] == expected.tolist()
    np.testing.assert_allclose([dict(s)["ffn"] for s in stated], sure[:, 0], atol=1e-4)


def test_undersampling_makes_level_1_even_and_leaves_level_3_alone(halves):
    train, test = halves
    rows = undersampled(train.faulty.to_numpy(), 42)
    kept = train.faulty.to_numpy()[rows]
    assert kept.sum() == (~kept).sum() == (~train.faulty).sum()
    predicted, _ = direct(train.X.astype(float).iloc[rows], kept, test.X.astype(float))
    model = DEFault().fit(train)
    assert (model.predict(test).table["faulty"] == predicted).all()
    assert all(forest.balance == "none" for forest in model.model_.diagnosers.values())
    assert all(forest.balance == "undersample" for forest in model.model_.categoriser.forests_.values())


def test_published_grid_has_216_candidates():
    assert np.prod([len(values) for values in GRID.values()]) == 216


def test_grid_search_is_scikit_learns_on_grouped_folds(halves, monkeypatch):
    train, _ = halves
    small = {"n_estimators": [5, 10], "max_depth": [2, None], "min_samples_split": [2, 10]}
    small |= {"min_samples_leaf": [1], "max_features": ["sqrt"]}
    monkeypatch.setattr(default_recipe, "GRID", small)
    y, pair = train.faulty.to_numpy(), train.pair.to_numpy()
    forest = RecipeForest(search="grid").fit(train.X, y, pair)
    search = GridSearchCV(RandomForestClassifier(random_state=42), small, cv=StratifiedGroupKFold(5))
    search.fit(forest.selected(train.X), y, groups=pair)
    assert {k: forest.forest_.get_params()[k] for k in small} == search.best_params_
    published = RecipeForest(search="grid", inner="random").fit(train.X, y, pair)
    plain = GridSearchCV(RandomForestClassifier(random_state=42), small, cv=5).fit(published.selected(train.X), y)
    assert {k: published.forest_.get_params()[k] for k in small} == plain.best_params_
    best = cross_val_score(plain.best_estimator_, published.selected(train.X), y, cv=5).mean()
    assert best == pytest.approx(plain.best_score_)


def test_grid_search_without_enough_rows_or_groups_keeps_the_given_forest():
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 0, 0, 1])
    one_group = RecipeForest(search="grid", n_estimators=7).fit(X, y, ["m/t"] * 6)
    assert one_group.forest_.n_estimators == 7
    one_row_of_a_class = RecipeForest(search="grid", inner="random", n_estimators=7).fit(X, y)
    assert one_row_of_a_class.forest_.n_estimators == 7


def test_one_vs_rest_with_a_single_class_says_that_class():
    X = np.random.default_rng(0).normal(size=(10, 3))
    model = OneVsRest(RecipeForest(n_estimators=5)).fit(X, np.array(["ffn"] * 10))
    assert (model.predict(X) == "ffn").all()
    assert (model.positive(X) == 1).all()


def test_training_runs_of_one_class_are_refused(halves):
    train, _ = halves
    with pytest.raises(BenchError, match="one Level-1 class"):
        DEFault().fit(train.take(train.faulty))


def test_a_bench_without_categories_gets_level_1_only(halves):
    train, test = halves
    bench = Bench("made", None, train.X, train.labels.assign(category=None, root_cause=None), train.pair, levels=(1,))
    verdicts = DEFault(n_estimators=10).fit(bench).predict(test).table
    assert verdicts["category"].isna().all()
    assert set(verdicts["evidence"]) == {"{}"}


def test_explanation_is_shap_of_the_guessed_categorys_forest_on_faulty_verdicts():
    shap = pytest.importorskip("shap")
    bench = bench_of(120, 12)
    model = DEFault(n_estimators=10, explain=True).fit(bench)
    table = model.predict(bench).table
    evidence = pd.Series([json.loads(e) for e in table["evidence"]], index=table.index)
    assert (evidence.map(lambda e: "shap" in e) == table["faulty"]).all()
    run = table.index[table["faulty"]][0]
    forest = model.model_.categoriser.forests_[table.loc[run, "category"]]
    X = forest.selected(bench.X)
    explanation = shap.TreeExplainer(forest.forest_).shap_values(X[[bench.runs.get_loc(run)]])[0, :, 1]
    stated = evidence[run]["shap"]
    assert len(stated) == 5
    assert stated[0][1] == pytest.approx(explanation[np.abs(explanation).argmax()], abs=1e-5)
    # SHAP values and the base rate add up to the forest's probability (Lundberg and Lee, 2017, local accuracy).
    base = shap.TreeExplainer(forest.forest_).expected_value[1]
    probability = forest.predict_proba(bench.X)[bench.runs.get_loc(run), 1]
    assert explanation.sum() + base == pytest.approx(probability, abs=1e-6)


def test_clone_and_repeat_give_the_same_verdicts(halves):
    train, test = halves
    technique = DEFault(n_estimators=10)
    first = technique.fit(train).predict(test).table
    pd.testing.assert_frame_equal(first, clone(technique).fit(train).predict(test).table)


def test_search_space_names_parameters_and_holds_their_defaults():
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    drawn = DEFault().search_space(study.ask())
    DEFault().set_params(**drawn)
    assert set(GRID) <= set(drawn)
    defaults = {name: DEFault().get_params()[name] for name in drawn}
    assert DEFault().search_space(optuna.trial.FixedTrial(defaults)) == defaults
    assert DEFault(search="grid").search_space(study.ask()) == {}


@pytest.mark.parametrize(
    "wrong", [{"search": "optuna"}, {"inner": "pairs"}, {"balance": "smote"}, {"infinities": "last"}]
)
def test_a_parameter_outside_its_choices_is_refused(halves, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DEFault(**wrong).fit(halves[0])
