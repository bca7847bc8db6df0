"""Reading benches: our own, the published layout, and every malformed file with its message."""

import numpy as np
import pandas as pd
import pytest

from features.bench import Bench, BenchError
from features.columnmap import ColumnMap
from features.readers import read_bench
from features.tabular import read_table

ENTROPY = "attention_entropy__layer_early_mean__epoch_mean__phase_slope"
LOSS = "train_loss__epoch_mean__phase_final_value"
STEP_TIME = "runtime_step_time__epoch_mean__phase_slope"


def published(arch="encoder"):
    """Eight rows in the published layout: three clean, four killed, one survivor."""
    killed_row = {"is_faulty": 1, "killed": 1.0, "label": "buggy", "layer_idx": 2, "severity_params": '{"swaps": 6}'}
    clean_row = {"is_faulty": 0, "killed": np.nan, "label": "correct", "layer_idx": np.nan, "severity_params": np.nan}
    faults = [
        ("qkv", "zero_query"),
        ("masking", "mask_application"),
        ("decoder_masking", "over_mask_valid_tokens"),
        ("FFN", "Weight Scaling"),
    ]
    rows = [clean_row | {"fault_category": np.nan, "fault_subcategory": np.nan} for _ in range(3)]
    rows += [killed_row | {"fault_category": c, "fault_subcategory": r} for c, r in faults]
    rows += [killed_row | {"fault_category": "output", "fault_subcategory": "out_scale", "killed": 0.0}]
    table = pd.DataFrame(rows)
    table.insert(0, "Identifier", [f"ENC_bert_sst2_{i}" for i in range(8)])
    table["arch"] = arch
    table["model_name"] = ["bert"] * 4 + ["gpt2"] * 4
    table["dataset_name"] = ["sst2", "mrpc"] * 4
    table["seed"] = 42
    table["epoch__epoch__phase_final_value"] = 9
    table["cache_kl_divergence_mean__epoch_mean__phase_slope__synthetic_zero"] = 1e-3
    table[STEP_TIME] = 0.05
    table[ENTROPY] = np.linspace(1.0, 2.0, 8)
    table[LOSS] = [0.1, 0.2, 0.3, 4.0, np.inf, 6.0, np.nan, 8.0]
    table["val_ece__epoch__phase_slope"] = np.nan
    table["mystery"] = np.arange(8)
    return table


@pytest.fixture
def write(tmp_path):
    def _write(table, name="encoder_dataset.csv", **options):
        path = tmp_path / name
        table.to_csv(path, index=False, **options)
        return path

    return _write


def test_published_layout(write):
    bench = read_bench(write(published()))
    assert bench.arch == "encoder"
    assert bench.name == "encoder_dataset"
    assert list(bench.runs) == [f"ENC_bert_sst2_{i}" for i in range(7)]
    assert list(bench.X) == [ENTROPY, LOSS, "mystery"]
    assert bench.faulty.tolist() == [False] * 3 + [True] * 4
    assert bench.labels["category"].tolist() == ["correct"] * 3 + ["qkv", "masking", "masking", "ffn"]
    assert bench.labels["root_cause"].tolist() == ["correct"] * 3 + [
        "parameter_initialization",
        "mask_application",
        "over_mask_valid_tokens",
        "weight_scaling",
    ]
    assert bench.pair.unique().tolist() == ["bert/sst2", "bert/mrpc", "gpt2/sst2", "gpt2/mrpc"]
    assert bench.levels == (1, 2, 3)
    assert bench.meta["fault_subcategory"].tolist()[3:] == published()["fault_subcategory"].tolist()[3:7]
    assert set(bench.meta) == {
        *("seed", "layer_idx", "severity_params", "label"),
        *("is_faulty", "killed", "fault_category", "fault_subcategory"),
    }


def test_all_that_is_left_out_or_changed_is_named(write):
    notes = "\n".join(read_bench(write(published())).notes)
    for said in (
        "1 survivors (injected, but not killed) were left out",
        "translated: qkv/zero_query → parameter_initialization",
        "kept as they are: masking/over_mask_valid_tokens",
        "left out, no measurement: epoch, cache_kl_divergence_mean",
        "left out, about the host or the schedule rather than the model: runtime_step_time",
        "in no feature group: mystery",
        "left out, no value in any row: val_ece",
        "1 infinite values were kept",
    ):
        assert said in notes


def test_survivors_can_count_as_correct(write):
    bench = read_bench(write(published()), survivors="correct")
    assert len(bench) == 8
    assert bench.labels.iloc[7].tolist() == [False, "correct", "correct"]
    assert "1 survivors (injected, but not killed) count as correct" in bench.notes
    with pytest.raises(BenchError, match="survivors must be"):
        read_bench(write(published()), survivors="keep")


def test_a_clean_run_is_correct_whatever_killed_says(write):
    table = published()
    table.loc[0, "killed"] = 1.0
    assert not read_bench(write(table)).faulty.iloc[0]


def test_machine_columns_by_flag_and_groups_left_out(write):
    path = write(published())
    bench = read_bench(path, include_machine_columns=True)
    assert list(bench.X) == [STEP_TIME, ENTROPY, LOSS, "mystery"]
    assert any("were let in: runtime_step_time" in n for n in bench.notes)
    assert list(read_bench(path, without_groups=["training_dynamics"]).X) == [ENTROPY, "mystery"]
    with pytest.raises(BenchError, match="no feature group 'atention'"):
        read_bench(path, without_groups=["atention"])


def test_a_saved_bench_of_a_read_table_reads_back(write, tmp_path):
    bench = read_bench(write(published()))
    again = read_bench(bench.save(tmp_path / "saved.parquet"))
    assert again.fingerprint() == bench.fingerprint()
    assert again.notes[: len(bench.notes)] == bench.notes


def test_parquet_in_the_published_layout(write, tmp_path):
    published().to_parquet(tmp_path / "encoder_dataset.parquet")
    bench = read_bench(tmp_path / "encoder_dataset.parquet")
    assert bench.fingerprint() == read_bench(write(published())).fingerprint()


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "utf-8-sig"},
        {"sep": ";"},
        {"sep": "\t"},
        {"sep": ";", "decimal": ",", "encoding": "utf-8-sig"},
        {"lineterminator": "\r\n"},
    ],
)
def test_byte_order_mark_semicolons_tabs_and_decimal_commas(write, options):
    plain = read_bench(write(published()))
    other = read_bench(write(published(), **options))
    pd.testing.assert_frame_equal(other.X, plain.X)
    assert other.labels.equals(plain.labels)


def test_own_layout_leaves_machine_columns_out_unless_asked(tmp_path):
    index = pd.Index(["a", "b"])
    own = Bench(
        name="own",
        arch="decoder",
        X=pd.DataFrame(1.0, index=index, columns=["step_time__epoch_mean__phase_slope", LOSS]),
        labels=pd.DataFrame(
            {"faulty": [False, True], "category": ["correct", "ffn"], "root_cause": ["correct", "weight_scaling"]},
            index=index,
        ),
        pair=pd.Series("m/t", index=index),
    )
    path = own.save(tmp_path / "own.parquet")
    assert list(read_bench(path).X) == [LOSS]
    assert "step_time" in read_bench(path, arch="decoder").notes[0]
    assert read_bench(path, include_machine_columns=True).fingerprint() == own.fingerprint()
    with pytest.raises(BenchError, match="holds decoder runs, not encoder runs"):
        read_bench(path, arch="encoder")
    with pytest.raises(BenchError, match="no feature is left"):
        read_bench(path, without_groups=["training_dynamics"])
    with pytest.raises(BenchError, match="blocks"):
        read_bench(path, blocks=2)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BenchError, match="not a readable Parquet file"):
        read_bench(path)


def changed(**columns):
    return published().assign(**columns)


MALFORMED_TABLES = {
    "no column 'fault_category'": published().drop(columns="fault_category"),
    "no column 'killed'": published().drop(columns="killed"),
    rf"column '{LOSS}' is not numeric \('high' in line 4\)": changed(**{LOSS: [1, 2, "high", 4, 5, "low", 7, 8]}),
    r"column 'Identifier' holds 'ENC_bert_sst2_0' 2 times": changed(
        Identifier=["ENC_bert_sst2_0", "ENC_bert_sst2_0", *"cdefgh"]
    ),
    "column 'Identifier' has no id in line 3": changed(Identifier=["a", None, *"cdefgh"]),
    "column 'is_faulty' holds '2' in line 2": changed(is_faulty=[2, 0, 0, 1, 1, 1, 1, 1]),
    "column 'is_faulty' holds 'nan' in line 9": changed(is_faulty=[0, 0, 0, 1, 1, 1, 1, None]),
    "column 'killed' holds 'maybe' in line 6": changed(killed=[0, 0, 0, 1, "maybe", 1, 1, 1]),
    "faulty run in line 5 has no category": changed(fault_category=[*"abc", None, *"efgh"]),
    "model_name or dataset_name is missing in line 2": changed(model_name=[None, *"bcdefgh"]),
    "holds decoder runs, not encoder runs": published("decoder"),
    "must say encoder or decoder, the same on every row": changed(arch=["encoder", "decoder"] * 4),
    "category 'kv_cache', which encoders can't have": changed(fault_category="kv_cache"),
    "no feature is left": published().drop(columns=[ENTROPY, LOSS, "mystery"]),
    "all runs carry the same label": published()[:3],
    "holds a header but no rows": published()[:0],
}


@pytest.mark.parametrize(("message", "table"), MALFORMED_TABLES.items(), ids=list(MALFORMED_TABLES))
def test_malformed_tables(write, message, table):
    with pytest.raises(BenchError, match=message) as error:
        read_bench(write(table), arch="encoder")
    assert "encoder_dataset.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_an_arch_column_the_caller_says_it(write):
    path = write(published().drop(columns="arch"))
    with pytest.raises(BenchError, match="give --arch"):
        read_bench(path)
    assert read_bench(path, arch="decoder").arch == "decoder"


BROKEN_FILES = {
    "is empty": b"",
    "empty first line": b"\n1,2\n",
    "column 'a' stands twice": b"a,b,a\n1,2,3\n",
    "last line has 2 of 3 fields": b"a,b,c\n1,2,3\n4,5",
    "rows don't fit the header of 3 columns": b"a,b,c\n1,2,3,4\n1,2,3,4\n",
    "rows don't fit the header": b"a,b,c\n1,2,3\n1,2,3,4\n1,2,3\n",
    "not UTF-8 text": "a,b\n1,ü\n".encode("latin-1"),
    "not UTF-8 text; save it": "a,b\n1,2\n".encode("utf-16"),
}


@pytest.mark.parametrize(("message", "content"), BROKEN_FILES.items(), ids=list(BROKEN_FILES))
def test_broken_files(tmp_path, message, content):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(BenchError, match=message) as error:
        read_bench(path, arch="encoder")
    assert "table.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_that_hold_no_table(tmp_path):
    with pytest.raises(BenchError, match="no such file"):
        read_bench(tmp_path / "none.csv")
    with pytest.raises(BenchError, match="no such file"):
        read_bench(tmp_path / "none.parquet")
    with pytest.raises(BenchError, match="is a folder"):
        read_bench(tmp_path)
    (tmp_path / "bench.zip").write_bytes(b"PK")
    with pytest.raises(BenchError, match="unpack it"):
        read_bench(tmp_path / "bench.zip")
    with pytest.raises(BenchError, match="say encoder or decoder"):
        read_bench(None)


def test_quoted_delimiters_and_trailing_blank_lines_are_no_cut(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('a,b\n1,"x, y"\n2,"z"\n\n')
    assert read_table(path)["b"].tolist() == ["x, y", "z"]


def test_values_beyond_float32_become_infinite_and_are_counted(write):
    table = pd.DataFrame({"label": ["correct", "buggy"], "loss": [1.0, 1e300]})
    bench = read_bench(write(table, "plain.csv"), ColumnMap(faulty="label", taxonomy=False))
    assert np.isposinf(bench.X["loss"].iloc[1])
    assert any(n.startswith("1 infinite values") for n in bench.notes)


def test_without_pairs_runs_or_blocks_of_rows_are_the_unit(write):
    table = pd.DataFrame({"label": ["correct", "buggy"] * 5, "loss": np.arange(10.0)})
    path = write(table, "plain.csv")
    columns = ColumnMap(faulty="label", taxonomy=False)
    single = read_bench(path, columns)
    assert single.pair.tolist() == list(single.runs)
    assert single.pair.nunique() == 10
    blocks = read_bench(path, columns, blocks=3)
    assert blocks.pair.tolist() == ["block1"] * 4 + ["block2"] * 3 + ["block3"] * 3
    for wrong in (1, 11):
        with pytest.raises(BenchError, match="blocks must lie between 2 and"):
            read_bench(path, columns, blocks=wrong)
    with pytest.raises(BenchError, match="blocks are for tables without pairs"):
        read_bench(write(published()), blocks=3)


def test_what_the_values_hide_is_noted(write):
    table = pd.DataFrame(
        {"label": ["correct", "buggy"] * 3, "loss": [1, 1, np.nan, 3, np.nan, 4], "norm": [1, 1, np.nan, 3, np.nan, 4]}
    )
    notes = read_bench(write(table, "plain.csv"), ColumnMap(faulty="label", taxonomy=False)).notes
    assert "2 runs have no value at all, 2 of them labelled correct: absence tells" in notes
    assert "2 runs have exactly the features of an earlier run" in notes
