"""The preparation against a plain recomputation, and against scikit-learn's own conformance checks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from features.bench import Bench, BenchError, write_parquet
from features.preparation import (
    AnomalyEncoder,
    BoundInfinite,
    DropConstant,
    DropMissing,
    ImputeMedian,
    LogLarge,
    Preparation,
    Standardise,
    finite,
    paired,
    paired_path,
)

# One of the checks draws features around 100 with deviation 1, which the default threshold rightly calls constant.
TRANSFORMERS = [
    BoundInfinite(),
    DropMissing(),
    LogLarge(),
    ImputeMedian(),
    DropConstant(min_variation=1e-3),
    Standardise(),
    AnomalyEncoder(),
    Preparation(min_variation=1e-3),
    Preparation(min_variation=1e-3, impute=False, anomaly=True),
]


@parametrize_with_checks(TRANSFORMERS)
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


@pytest.fixture
def runs():
    """60 runs (20 faulty) whose columns need each step of the preparation once."""
    rng = np.random.default_rng(3)
    n = 60
    faulty = np.arange(n) % 3 == 0
    X = pd.DataFrame(
        {
            "plain": rng.normal(2.0, 1.0, n),
            "signed": rng.normal(0.0, 1.0, n),
            "wide": np.exp(rng.normal(0.0, 6.0, n)),
            "huge": rng.normal(0.0, 1e5, n),
            "gappy": np.where(rng.random(n) < 0.2, np.nan, rng.normal(5.0, 1.0, n) + 3 * faulty),
            "mostly_missing": np.where(np.arange(n) < 27, np.nan, 1.0 * np.arange(n)),
            "empty": np.full(n, np.nan),
            "constant": np.full(n, 3.0),
            "nearly_constant": 100.0 + rng.normal(0.0, 0.1, n),
            "diverged": np.where(faulty, np.inf, rng.normal(1.0, 0.5, n)),
            "indicator": np.r_[np.ones(3), np.zeros(n - 3)],
        },
        index=[f"run{i}" for i in range(n)],
    )
    return X, faulty


def recompute(train, faulty, test):
    """The manuscript's steps, column by column, with the standard library's arithmetic."""
    out = {}
    for name in train:
        column, probe = train[name].to_numpy(float), test[name].to_numpy(float)
        known = column[np.isfinite(column)]
        if np.isnan(column).sum() > 0.4 * len(column):
            continue
        bound = lambda v, known=known: np.clip(v, known.min(), known.max()) if np.isinf(v) else v  # noqa: E731
        column, probe = np.array([bound(v) for v in column]), np.array([bound(v) for v in probe])
        seen = column[~np.isnan(column)]
        middle = np.median(abs(seen))
        if seen.var() > 1e6 or (middle > 0 and abs(seen).max() / middle > 1000):
            column, probe = (np.sign(v) * np.log(1 + abs(v)) for v in (column, probe))
        fill = np.median([v for v, f in zip(column, faulty, strict=True) if not f and not np.isnan(v)])
        column, probe = (np.where(np.isnan(v), fill, v) for v in (column, probe))
        if column.std() == 0 or column.std() / abs(column.mean()) < 0.01:
            continue
        out[name] = (probe - column.mean()) / column.std()
    return pd.DataFrame(out, index=test.index)


def test_preparation_equals_a_plain_recomputation(runs):
    X, faulty = runs
    train, test = X.iloc[:45], X.iloc[45:]
    preparation = Preparation().fit(train, faulty[:45])
    expected = recompute(train, faulty[:45], test)
    pd.testing.assert_frame_equal(preparation.transform(test), expected, rtol=1e-9)
    assert list(expected) == ["plain", "signed", "wide", "huge", "gappy", "diverged", "indicator"]
    assert list(preparation.get_feature_names_out()) == list(expected)
    trained = preparation.transform(train)
    np.testing.assert_allclose(trained.mean(), 0, atol=1e-9)
    np.testing.assert_allclose(trained.std(ddof=0), 1, rtol=1e-9)


def test_without_imputation_gaps_stay(runs):
    X, faulty = runs
    kept = Preparation(impute=False).fit(X, faulty).transform(X)
    assert kept["gappy"].isna().equals(X["gappy"].isna())
    assert kept.drop(columns="gappy").notna().all(axis=None)


@pytest.mark.parametrize("anomaly", [False, True])
def test_test_rows_do_not_reach_the_transform(runs, anomaly):
    X, faulty = runs
    train, test = X.iloc[:45], X.iloc[45:]
    fitted = Preparation(anomaly=anomaly).fit(train, faulty[:45])
    spoiled = test.copy()
    spoiled.iloc[1:] = 1e9
    first = fitted.transform(test).iloc[[0]]
    pd.testing.assert_frame_equal(fitted.transform(spoiled).iloc[[0]], first)
    pd.testing.assert_frame_equal(fitted.transform(test.iloc[[0]]), first)


def test_faulty_training_rows_do_not_reach_medians_of_the_correct(runs):
    X, faulty = runs
    X = X[["plain", "gappy"]]
    moved = X.copy()
    moved.loc[faulty] += 100.0
    for estimator, learned in (
        (ImputeMedian(), "median_"),
        (AnomalyEncoder(), "scale_"),
        (AnomalyEncoder(), "median_"),
    ):
        before = getattr(clone(estimator).fit(X, faulty), learned)
        np.testing.assert_array_equal(getattr(clone(estimator).fit(moved, faulty), learned), before)
        assert not np.array_equal(getattr(clone(estimator).fit(moved), learned), before)


def test_bound_infinite_takes_the_extremes_of_training():
    X = pd.DataFrame({"a": [1.0, np.inf, -2.0, np.nan], "b": [np.inf, -np.inf, np.nan, np.inf]})
    out = BoundInfinite().fit(X).transform(X)
    assert out["a"].tolist()[:3] == [1.0, 1.0, -2.0]
    assert np.isnan(out["a"][3])
    assert out["b"].isna().all()


def test_drop_missing_is_strict_at_its_threshold():
    X = pd.DataFrame({"forty": [np.nan] * 4 + [1.0] * 6, "fifty": [np.nan] * 5 + [1.0] * 5, "none": np.nan})
    assert list(DropMissing().fit(X).get_feature_names_out()) == ["forty"]
    assert list(DropMissing(max_share=1.0).fit(X).get_feature_names_out()) == ["forty", "fifty"]
    with pytest.raises(ValueError, match="no column is left"):
        DropMissing(max_share=0.1).fit(X)


def test_log_large_is_log1p_on_wide_columns_only():
    X = pd.DataFrame(
        {
            "ratio": [1.0, 1.0, 1500.0],
            "variance": [0.0, 1.0, 4000.0],
            "narrow": [1.0, 2.0, 900.0],
            "median_zero": [0.0, 0.0, 900.0],
        }
    )
    out = LogLarge().fit(X).transform(X)
    np.testing.assert_allclose(out["ratio"], np.log1p(X["ratio"]))
    np.testing.assert_allclose(out["variance"], np.log1p(X["variance"]))
    assert out[["narrow", "median_zero"]].equals(X[["narrow", "median_zero"]])


@given(hnp.arrays(float, (8, 1), elements=st.floats(-1e12, 1e12)))
@settings(max_examples=50, deadline=None)
def test_log_large_is_odd_and_keeps_order(values):
    out = LogLarge(variance=-1.0).fit(values)
    np.testing.assert_allclose(out.transform(-values), -out.transform(values))
    order = np.argsort(values[:, 0], kind="stable")
    assert (np.diff(out.transform(values)[order, 0]) >= 0).all()


def test_impute_median_falls_back_to_all_rows():
    X = pd.DataFrame({"a": [np.nan, np.nan, 4.0, 6.0], "b": [1.0, 3.0, np.nan, 50.0]})
    imputed = ImputeMedian().fit(X, [0, 0, 1, 1])
    assert imputed.median_.tolist() == [5.0, 2.0]
    assert imputed.transform(X)["b"].tolist() == [1.0, 3.0, 2.0, 50.0]


def test_drop_constant_at_mean_zero_asks_only_for_variation():
    X = pd.DataFrame({"zero": 0.0, "tiny": [-1e-9, 1e-9, 0.0], "flat": 5.0, "flatish": [100.0, 100.1, 99.9]})
    assert list(DropConstant().fit(X).get_feature_names_out()) == ["tiny"]


def test_anomaly_encoder_by_hand():
    X = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0, 5.0, 30.0], "stuck": [0, 0, 0, 0, 6, 9.0], "same": [7.0] * 5 + [9.0]})
    encoder = AnomalyEncoder().fit(X, [0, 0, 0, 0, 0, 1])
    # Medians 3, 0, 7; MADs 1, 0, 0; the deviation of 0, 0, 0, 0, 6 is 2.4.
    np.testing.assert_allclose(encoder.transform(X).iloc[5], [27 / 1.4826, 9 / 2.4, 2.0])


def test_a_float32_table_stays_float32_and_arrays_stay_arrays(runs):
    X, faulty = runs
    assert (Preparation().fit_transform(X.astype(np.float32), faulty).dtypes == np.float32).all()
    out = Preparation().fit(X.to_numpy(), faulty).transform(X.to_numpy())
    assert isinstance(out, np.ndarray)
    np.testing.assert_allclose(out, Preparation().fit(X, faulty).transform(X))
    with_pandas = Preparation().set_output(transform="pandas").fit(X.to_numpy(), faulty).transform(X.to_numpy())
    assert list(with_pandas) == ["x0", "x1", "x2", "x3", "x4", "x9", "x10"]


def test_a_missing_column_is_named(runs):
    X, faulty = runs
    fitted = Preparation().fit(X, faulty)
    with pytest.raises(ValueError, match="wide"):
        fitted.transform(X.drop(columns="wide"))


def test_finite_makes_infinity_missing():
    X = pd.DataFrame({"a": [1.0, np.inf, -np.inf, np.nan]})
    assert finite(X)["a"].notna().tolist() == [True, False, False, False]


@pytest.fixture
def bench():
    index = pd.Index(["a", "b", "c"])
    return Bench(
        name="three",
        arch=None,
        X=pd.DataFrame({"loss": [1.0, 2.0, 3.0], "norm": [1.0, 1.0, 4.0]}, index=index),
        labels=pd.DataFrame({"faulty": [False, True, True], "category": None, "root_cause": None}, index=index),
        pair=pd.Series("m/t", index=index),
    )


def test_paired_reads_the_differences_beside_the_bench(bench, tmp_path):
    path = tmp_path / "three.parquet"
    table = pd.DataFrame({"norm": [9.0, 0.5, 0.0], "loss": [9.0, 1.5, 0.1]}, index=["c", "b", "a"])
    write_parquet(table, paired_path(path))
    out = paired(bench, path)
    assert out.X.round(4).to_dict("index") == {
        "a": {"loss": pytest.approx(0.1, rel=1e-3), "norm": 0.0},
        "b": {"loss": 1.5, "norm": 0.5},
        "c": {"loss": 9.0, "norm": 9.0},
    }
    assert out.labels.equals(bench.labels)
    assert "does not have" in out.notes[-1]


def test_paired_is_refused_without_its_table(bench, tmp_path):
    path = tmp_path / "three.parquet"
    with pytest.raises(BenchError, match=r"three\.paired\.parquet: no such file"):
        paired(bench, path)
    write_parquet(pd.DataFrame({"loss": [1.0, 2.0]}, index=["a", "b"]), paired_path(path))
    with pytest.raises(BenchError, match="run 'c' is missing"):
        paired(bench, path)
    write_parquet(pd.DataFrame({"other": [1.0, 2.0, 3.0]}, index=["a", "b", "c"]), paired_path(path))
    with pytest.raises(BenchError, match="column 'other'"):
        paired(bench, path)
